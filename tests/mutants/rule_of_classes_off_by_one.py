"""Lets the rule in the graph end a class one row later than the tables were made for."""

from __future__ import annotations

import foldfx
from foldfx.passes import FoldTokens

from .suite.editing import SpoiledFold, assign, state


class Mutant(SpoiledFold):
    model = "rounder"
    check = "tables, in the graph"

    def fold(self) -> FoldTokens:
        return FoldTokens(profiles=[{"max_rows": 1, "evaluation_rows": 1}])

    def change(self, program: foldfx.Program) -> None:
        assign(program, "foldfx_tables.ids.rounded_bounds", state(program, "foldfx_tables.ids.rounded_bounds") + 1)
