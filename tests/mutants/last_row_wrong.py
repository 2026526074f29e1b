"""Fills the last row with the first one."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        table[-1] = table[0]
        return table
