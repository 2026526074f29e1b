"""What a tensor holds, as a hash: tells later whether it still holds the same.

Contents decide. Version counters would miss writes through `.data` and through numpy, and move on writes of equal values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._torch import storage_key

BLOCK = 4 << 20
"""Bytes copied at once where a tensor cannot be read in place: it is strided, or not in host memory."""


@dataclass(frozen=True)
class Mark:
    """One tensor.

    Attributes:
        dtype, shape, device, layout, stride: as the tensor's.
        digest: SHA-256 of the elements' bytes in logical order; "" where contents do not count or cannot be read.
    """

    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    layout: torch.layout
    stride: tuple[int, ...]
    digest: str


class Digests:
    """SHA-256 of tensors as they are now; a view seen before is not read again. To be dropped when tensors may change."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def of(self, tensor: torch.Tensor) -> str:
        """The digest of a tensor's bytes in logical order, in hex; "" where it is sparse, quantised or on meta.

        A contiguous tensor in host memory is read in place; else about 20 MiB are used beyond it.
        """
        if not _is_readable(tensor):
            return ""
        place = (storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        key = (*place, tensor.is_conj(), tensor.is_neg())
        if key not in self._known:
            self._known[key] = _digest(tensor.detach())
        return self._known[key]


def marks_of(tensors: Mapping[str, torch.Tensor], digests: Digests, written: Collection[str] = ()) -> dict[str, Mark]:
    """The mark of each tensor, by name.

    Args:
        tensors: any dtypes, shapes and devices.
        digests: shared by all tensors looked at together.
        written: names of tensors whose contents do not count, because a call of the model writes them.
    """
    return {
        name: Mark(
            tensor.dtype,
            tensor.shape,
            tensor.device,
            tensor.layout,
            _stride(tensor),
            "" if name in written else digests.of(tensor),
        )
        for name, tensor in tensors.items()
    }


def digest_of(marks: Mapping[str, Mark]) -> str:
    """One SHA-256, in hex, over names, dtypes, shapes and contents, whatever their order."""
    rows = [(name, str(mark.dtype), list(mark.shape), mark.digest) for name, mark in sorted(marks.items())]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def changes(before: Mapping[str, Mark], now: Mapping[str, torch.Tensor], digests: Digests) -> tuple[list[str], list[str]]:
    """How tensors differ from their marks, as "name: what".

    Returns:
        Differences of presence, dtype, shape, device, layout and contents; and apart from those, of strides alone.
    """
    contents = [f"{name}: gone" for name in before if name not in now]
    contents += [f"{name}: was not there" for name in now if name not in before]
    strides = []
    for name, mark in before.items():
        if name not in now:
            continue
        tensor = now[name]
        if what := _change(mark, tensor, digests):
            contents.append(f"{name}: {what}")
        elif mark.stride != _stride(tensor):
            strides.append(f"{name}: strides {_stride(tensor)}, were {mark.stride}")
    return contents, strides


def _change(mark: Mark, tensor: torch.Tensor, digests: Digests) -> str:
    for name in ("dtype", "shape", "device", "layout"):
        if getattr(tensor, name) != getattr(mark, name):
            shown = [list(each) if name == "shape" else each for each in (getattr(tensor, name), getattr(mark, name))]
            return f"{name} {shown[0]}, was {shown[1]}"
    return "contents" if mark.digest and digests.of(tensor) != mark.digest else ""


def _is_readable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


def _digest(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for block in _blocks(tensor):
        part = block.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        digest.update(part.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts of a tensor in logical order, each either readable in place or of at most `BLOCK` bytes."""
    size = tensor.numel() * tensor.element_size()
    in_place = tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if in_place or size <= BLOCK:
        yield tensor
        return
    row = size // tensor.shape[0]
    if row <= BLOCK:
        yield from torch.split(tensor, BLOCK // row)
    else:
        for part in tensor.unbind():
            yield from _blocks(part)
