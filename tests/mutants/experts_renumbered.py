"""Numbers the experts in another order in the route table alone."""

from __future__ import annotations

import torch
from torch import Tensor

from .suite.editing import SpoiledRoutes


class Mutant(SpoiledRoutes):
    def spoil(self, table: Tensor) -> Tensor:
        return torch.tensor([1, 2, 3, 4, 5, 0], dtype=table.dtype)[table.long()]
