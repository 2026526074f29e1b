"""Adds a value without saying what it is."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "metadata"

    def change(self, program: foldfx.Program) -> None:
        new = add(program, aten.clone.default, returned(program, "gate"))
        del new.meta["val"]
        answer(program, "gate", new)
