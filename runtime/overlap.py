"""Which tensors stand on the same memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Addresses:
    """Where the elements of a tensor lie; `__array_interface__` lets NumPy compute with them unread."""

    device: str
    start: int
    stop: int
    __array_interface__: dict[str, Any]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Addresses:
        """Those of a strided tensor that has memory."""
        size, start = tensor.element_size(), tensor.data_ptr()
        last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
        stop = start + (last + 1) * size if tensor.numel() else start
        strides = tuple(stride * size for stride in tensor.stride())
        elements = {"version": 3, "data": (start, False), "shape": tuple(tensor.shape), "strides": strides}
        return cls(str(tensor.device), start, stop, {**elements, "typestr": f"|V{size}"})

    def overlap(self, other: Addresses) -> bool:
        """Whether some byte belongs to an element of both."""
        return self.device == other.device and bool(np.shares_memory(np.asarray(self), np.asarray(other)))


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether some byte belongs to an element of both; exact for any strides, on any device."""
    return Addresses.of(one).overlap(Addresses.of(other))
