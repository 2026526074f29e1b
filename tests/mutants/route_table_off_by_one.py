"""Gives every id the experts of the id before."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledRoutes


class Mutant(SpoiledRoutes):
    def spoil(self, table: Tensor) -> Tensor:
        return table.roll(1, 0)
