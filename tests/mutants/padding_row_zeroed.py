"""Takes the row of the padding id for zeros, though the layers above it have a bias."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        table[0] = 0
        return table
