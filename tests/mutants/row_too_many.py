"""Adds a row to a table, so that an id outside the domain finds one."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    check = "state"

    def spoil(self, table: Tensor) -> Tensor:
        return torch.cat([table, table[:1]])
