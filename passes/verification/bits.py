"""Bit patterns: equality under which ±0 differ and NaN equals itself."""

from __future__ import annotations

import torch

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bit patterns as integers; integers and booleans as they are."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().view(_SAME_SIZE[tensor.element_size()])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal dtype, shape and bit patterns."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits_of(one), bits_of(other))
