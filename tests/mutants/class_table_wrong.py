"""Stores the rows of one class one row further down."""

from __future__ import annotations

from torch import Tensor

from foldfx.passes import FoldTokens

from .suite.editing import SpoiledFold
from .suite.models import VOCABULARY


class Mutant(SpoiledFold):
    model = "rounder"

    def fold(self) -> FoldTokens:
        return FoldTokens(profiles=[{"max_rows": 1, "evaluation_rows": 1}])

    def spoil(self, table: Tensor) -> Tensor:
        table[VOCABULARY:] = table[VOCABULARY:].roll(1, 0)
        return table
