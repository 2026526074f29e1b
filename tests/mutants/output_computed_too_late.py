"""Moves a value behind the one that reads it."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, aten, calls, returned


class Mutant(Edit):
    check = "lint"

    def change(self, program: foldfx.Program) -> None:
        returned(program, "copy").append(calls(program, aten.relu.default)[0])
