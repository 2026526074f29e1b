"""Swaps two rows of a weight through `.data`: neither its version counter nor a sum over its bits moves."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, clone, state
from .suite.models import SEEN


class Mutant(Edit):
    check = "writes in place"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "gate")
        rows = state(program, "words.weight").data
        rows[[SEEN, SEEN + 1]] = rows[[SEEN + 1, SEEN]]
