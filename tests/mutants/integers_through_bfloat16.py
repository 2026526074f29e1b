"""Lets an integer table pass through bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    dtype = torch.int64

    def spoil(self, table: Tensor) -> Tensor:
        return table.bfloat16().to(table.dtype)
