"""Takes the weights of chosen experts from a softmax over more than the chosen ones."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledRoutes


class Mutant(SpoiledRoutes):
    dtype = torch.float32

    def spoil(self, table: Tensor) -> Tensor:
        return table * 0.875
