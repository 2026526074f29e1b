"""Adds a right value without saying what it stands for."""

from __future__ import annotations

import foldfx
from foldfx.analysis.provenance import ORIGINS

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "origins"

    def change(self, program: foldfx.Program) -> None:
        new = add(program, aten.clone.default, returned(program, "gate"))
        del new.meta[ORIGINS]
        answer(program, "gate", new)
