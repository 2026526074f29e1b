"""Emits the execution class of each row a call computes, in plain ATen."""

from __future__ import annotations

import torch
from torch.fx import Node

from ..builder import Builder
from .row_classes import RowClasses

aten = torch.ops.aten


def emit_classes(build: Builder, index: Node, classes: RowClasses, prefix: str) -> Node:
    """The class of every element of `index`, by how many there are and where it stands among them.

    Returns:
        int64, the shape of `index`.
    """
    bounds, rule = (
        build.state(f"{prefix}.{name}", each) for name, each in zip(("bounds", "classes"), classes.rule(), strict=True)
    )
    count = build.call(aten.sym_numel.default, index)
    number = build.call(aten.full.default, [], count, dtype=torch.int64, device=index.meta["val"].device)
    row = build.call(aten.index.Tensor, rule, [build.call(aten.bucketize.Tensor, number, bounds)])
    if not classes.by_position:
        return build.call(aten.expand_as.default, build.call(aten.squeeze.dim, row, 0), index)
    places = build.call(aten.arange.default, count, dtype=torch.int64, device=index.meta["val"].device)
    last = rule.meta["val"].shape[1] - 1
    return build.call(
        aten.view_as.default, build.call(aten.index.Tensor, row, [build.call(aten.clamp.default, places, None, last)]), index
    )
