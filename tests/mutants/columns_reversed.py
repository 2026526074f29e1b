"""Stores the columns of a table in the other order."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        return table.flip(1)
