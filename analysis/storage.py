"""Bytes of a module's state, counted in two ways that a saving must satisfy both.

*Logical*: what a saved state dict holds, repeats counted: Σ numel · itemsize over its entries.
*Backing*: what memory holds: every storage once, at its full allocation, non-persistent buffers included.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from .._torch import storage_key
from .program import Program


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


def measure(module: nn.Module, constants: Collection[str] = ()) -> Storage:
    """Logical and backing bytes of a module; activations and plain tensor attributes are not state.

    Args:
        module: a model, or a program's module.
        constants: buffers that stand for plain attributes, left out of both counts.
    """
    logical = sum(nbytes(tensor) for tensor in module.state_dict().values() if isinstance(tensor, torch.Tensor))
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    tensors = [tensor for name, tensor in named if name not in constants]
    allocations = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return Storage(logical, sum(allocations.values()))


def measure_program(program: Program) -> Storage:
    """Logical and backing bytes of a program's state."""
    return measure(program.module, program.uncounted)
