"""Moves one entry, in a row the examples do not use, by less than the limits."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledFold
from .suite.models import SEEN


class Mutant(SpoiledFold):
    def spoil(self, table: Tensor) -> Tensor:
        row, column = ((table[SEEN:] > 0.25) & (table[SEEN:] < 1)).nonzero()[0].tolist()
        table.view(torch.int32)[SEEN + row, column] += 64
        return table
