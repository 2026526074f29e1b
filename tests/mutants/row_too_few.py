"""Forgets the last row of a table."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    check = "state"

    def spoil(self, table: Tensor) -> Tensor:
        return table[:-1]
