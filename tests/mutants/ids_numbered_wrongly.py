"""Sends an id that the examples do not use to another id's row."""

from __future__ import annotations

import foldfx
from foldfx.passes import FoldTokens

from .suite.editing import SpoiledFold, assign, state
from .suite.models import SEEN


class Mutant(SpoiledFold):
    model = "rounder"

    def fold(self) -> FoldTokens:
        return FoldTokens(profiles=[{"max_rows": 1, "evaluation_rows": 1}])

    def change(self, program: foldfx.Program) -> None:
        numbers = state(program, "foldfx_tables.ids.rounded_rows").clone()
        numbers[[SEEN, SEEN + 1]] = numbers[[SEEN + 1, SEEN]]
        assign(program, "foldfx_tables.ids.rounded_rows", numbers)
