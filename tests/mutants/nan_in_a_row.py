"""Leaves a NaN in a row that the examples do not use."""

from __future__ import annotations

from torch import Tensor

from .suite.editing import SpoiledFold
from .suite.models import SEEN


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        table[SEEN, 0] = float("nan")
        return table
