"""Swaps two rows that the examples do not use."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold
from .suite.models import SEEN


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        table[[SEEN, SEEN + 2]] = table[[SEEN + 2, SEEN]]
        return table
