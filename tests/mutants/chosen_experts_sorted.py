"""Sorts the experts that an id chooses, and leaves their weights where they are."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledRoutes


class Mutant(SpoiledRoutes):
    def spoil(self, table: Tensor) -> Tensor:
        return table.sort(1).values
