"""Computes two equal outputs once and returns one tensor for both."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, answer, returned


class Mutant(Edit):
    check = "shared memory"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "double", returned(program, "twice"))
