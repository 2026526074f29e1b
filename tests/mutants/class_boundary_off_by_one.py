"""Uses the table for one row for calls of two rows, too."""

from __future__ import annotations

from foldfx.passes import FoldTokens

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "rounder"
    check = "tables, ends of classes"

    def fold(self) -> FoldTokens:
        return FoldTokens(profiles=[{"max_rows": 2, "evaluation_rows": 1}])
