"""Stores a table in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    check = "state"

    def spoil(self, table: Tensor) -> Tensor:
        return table.to(torch.float64)
