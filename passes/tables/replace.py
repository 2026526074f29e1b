"""Puts a new node in the place of an old one whose memory layout may differ."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..._torch import is_mutable, is_overload, size_expression
from ..builder import Builder
from ..structure import recompute
from ..verification.counterexample import STANDS_FOR
from .region import RegionError

aten = torch.ops.aten


def replace_value(build: Builder, old: Node, new: Node) -> None:
    """Let every reader of `old` read `new`, a value of the same shape and dtype.

    Where the strides differ, `new` is used as it is (a view of a packed row, say) if every operation downstream
    accepts it and the program's outputs keep their strides; otherwise as a contiguous copy.

    Raises:
        RegionError: the readers were traced with strides that are neither.
    """
    if not _same_layout(new.meta["val"], old.meta["val"]):
        downstream = _downstream(old, new)
        if downstream is None:
            new = build.call(aten.clone.default, new, memory_format=torch.contiguous_format)
            if not _same_layout(new.meta["val"], old.meta["val"]):
                raise RegionError(f"{old.name} has strides {old.meta['val'].stride()}, which a lookup does not reproduce")
        else:
            for node, value in downstream.items():
                node.meta["val"] = value
    new.meta[STANDS_FOR] = (*new.meta.get(STANDS_FOR, ()), old.name)
    old.replace_all_uses_with(new)


def _downstream(old: Node, new: Node) -> dict[Node, Any] | None:
    """The traced values that change when `old` has the layout of `new`; None where that is not possible."""
    fresh: dict[Node, Any] = {old: new.meta["val"]}
    node = old.next
    while node.op != "root":
        if any(operand in fresh for operand in node.all_input_nodes):
            if node.op != "call_function" or (is_overload(node.target) and is_mutable(node.target)):
                return None
            try:
                value = recompute(node, fresh)
            except (RuntimeError, ValueError):
                return None
            if not _same_layout(value, node.meta.get("val")):
                fresh[node] = value
        node = node.next
    del fresh[old]
    return fresh


def _same_layout(one: Any, other: Any) -> bool:
    """Equal strides along every dimension of more than one element, in every tensor."""
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and all(map(_same_layout, one, other))
    if not isinstance(one, torch.Tensor):
        return True
    return _strides(one) == _strides(other)


def _strides(value: torch.Tensor) -> list[str]:
    pairs = zip(map(size_expression, value.shape), map(size_expression, value.stride()), strict=True)
    return [str(stride.expand()) for size, stride in pairs if size != 1]
