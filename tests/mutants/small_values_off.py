"""Scales an output of small values by 1.0001."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "relative L2"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "small", add(program, aten.mul.Tensor, returned(program, "small"), 1.0001))
