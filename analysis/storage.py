"""Bytes of a module's state, counted in two ways that a saving must satisfy both.

*Logical*: what a saved state dict holds, repeats counted: Σ numel · itemsize over its entries.
*Backing*: what memory holds: every storage once, at its full allocation, non-persistent buffers included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .._torch import storage_key


@dataclass(frozen=True)
class Storage:
    """Bytes of one module's state."""

    logical: int
    backing: int

    def below(self, other: Storage) -> bool:
        """Whether both counts are strictly smaller than `other`'s."""
        return self.logical < other.logical and self.backing < other.backing

    def __str__(self) -> str:
        return f"logical {self.logical:,} B, backing {self.backing:,} B"


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's own elements: numel · itemsize."""
    return tensor.numel() * tensor.element_size()


def measure(module: nn.Module) -> Storage:
    """Logical and backing bytes of a module; plain tensor attributes and activations are not state."""
    logical = sum(nbytes(tensor) for tensor in module.state_dict().values() if isinstance(tensor, torch.Tensor))
    tensors = [*module.parameters(), *module.buffers()]
    allocations = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return Storage(logical, sum(allocations.values()))
