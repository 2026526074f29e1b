"""Uses the table for twelve and thirteen rows for calls of fourteen rows, too."""

from __future__ import annotations

from foldfx.passes import FoldTokens

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "rounder of a dozen"
    check = "tables, ends of classes"

    def fold(self) -> FoldTokens:
        return FoldTokens(profiles=[{"max_rows": 11, "evaluation_rows": 8}, {"max_rows": 14, "evaluation_rows": 12}])
