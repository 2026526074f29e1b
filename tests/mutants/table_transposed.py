"""Fills a table column by column."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        return table.t().reshape(table.shape)
