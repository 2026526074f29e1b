"""Shifts a table by one row."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        return table.roll(1, 0)
