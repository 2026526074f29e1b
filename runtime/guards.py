"""The input check at the head of a captured program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import TokenRankError


class InputGuards(nn.Module):
    """Refuses calls the program was not captured and verified for.

    Export checks sizes and specialised numbers, but not the number of dimensions: a graph with `softmax(dim=1)` runs
    on ids of another rank and means something else there.

    Args:
        sizes: export's own guard module, called with every input.
        ranks: for each token input its place among the inputs, and the numbers of dimensions admitted.
    """

    def __init__(self, sizes: nn.Module, ranks: Mapping[str, tuple[int, frozenset[int]]]) -> None:
        super().__init__()
        self.sizes = sizes
        self.ranks = dict(ranks)
        self.eval()

    def forward(self, *inputs: Any) -> None:
        """Check every input, in placeholder order.

        Raises:
            TokenRankError: token ids with a number of dimensions that is not admitted.
            AssertionError: a size or number differs from what was captured (raised by export's guards).
        """
        for name, (place, admitted) in self.ranks.items():
            ids = inputs[place]
            if isinstance(ids, torch.Tensor) and ids.dim() not in admitted:
                raise TokenRankError(
                    f"token input {name} has {ids.dim()} dimensions; this program was captured and verified for "
                    f"{sorted(admitted)}. Reshape the ids, or give an example with that many dimensions"
                )
        self.sizes(*inputs)
