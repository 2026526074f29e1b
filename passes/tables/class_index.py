"""Emits the execution class of each row a call computes, in plain ATen."""

from __future__ import annotations

import torch
from torch.fx import Node

from ..builder import Builder
from .row_classes import RowClasses

aten = torch.ops.aten


def emit_classes(build: Builder, index: Node, classes: RowClasses, prefix: str) -> Node:
    """The class of every element of `index`, by how many there are and where it stands among them.

    Args:
        build: adds the nodes.
        index: the row numbers that are looked up.
        classes: the rule.
        prefix: names of the rule's tensors begin with it; no other rule's may.

    Returns:
        int64, the shape of `index`.
    """
    device = index.meta["val"].device
    bounds, rule = (
        build.state(f"{prefix}_{name}", each.to(device))
        for name, each in zip(("bounds", "classes"), classes.rule(), strict=True)
    )
    count = build.call(aten.sym_numel.default, index)
    number = build.call(aten.full.default, [], count, dtype=torch.int64, device=device)
    row = build.call(aten.index.Tensor, rule, [build.call(aten.bucketize.Tensor, number, bounds)])
    if not classes.by_position:
        return build.call(aten.expand_as.default, build.call(aten.squeeze.dim, row, 0), index)
    places = build.call(aten.arange.default, count, dtype=torch.int64, device=device)
    last = rule.meta["val"].shape[1] - 1
    return build.call(
        aten.view_as.default, build.call(aten.index.Tensor, row, [build.call(aten.clamp.default, places, None, last)]), index
    )
