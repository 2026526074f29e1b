"""Adds a bias before a running sum that it stood behind."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "max-abs"

    def change(self, program: foldfx.Program) -> None:
        scan, bias = returned(program, "sums").args
        answer(program, "sums", add(program, aten.cumsum.default, add(program, aten.add.Tensor, scan.args[0], bias), 1))
