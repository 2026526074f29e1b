"""Fills the rows that the examples use, and leaves the others empty."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold
from .suite.models import SEEN


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        table[SEEN:] = 0
        return table
