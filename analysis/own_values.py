"""Comparisons of a score with a value of its own, as in the mask `score < score.topk(k).values[..., -1:]`.

The value chosen meets itself there, which is no tie.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from .._torch import is_overload, schema_arguments

aten = torch.ops.aten

_STATISTICS = frozenset(
    {
        *(aten.topk.default, aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.median.dim),
        *(aten.max.dim, aten.min.dim, aten.max.default, aten.min.default, aten.amax.default, aten.amin.default),
    }
)
_VIEWS = frozenset(
    {
        *(operator.getitem, aten.select.int, aten.slice.Tensor, aten.unsqueeze.default, aten.expand.default),
        *(aten.squeeze.dim, aten.squeeze.dims, aten.view.default, aten.alias.default, aten.clone.default),
    }
)


def _compared(node: Node) -> tuple[Node, Node, Node] | None:
    """Of a comparison: the score, an order statistic of it, and what of that the score is compared with."""
    if not is_overload(node.target):
        return None
    arguments = schema_arguments(node)
    one, other = arguments.get("self"), arguments.get("other")
    for score, threshold in ((one, other), (other, one)):
        if isinstance(score, Node) and isinstance(threshold, Node):
            statistic = _origin(threshold)
            if statistic is not None and statistic.args[0] is score:
                return score, statistic, threshold
    return None


def without_itself(margin: torch.Tensor, node: Node, operands: Mapping[Node, Any]) -> torch.Tensor:
    """The margins of a comparison, infinite where the one value that is its row's threshold meets itself.

    Several values of a row that equal the threshold are a tie: 0.

    Args:
        margin: float64, of the comparison's shape.
        node: any operation; all but such comparisons leave the margin as it is.
        operands: values by node.
    """
    found = _compared(node)
    if found is None or operands[found[0]].shape != margin.shape or not margin.numel():
        return margin
    _, statistic, threshold = found
    chosen = schema_arguments(statistic).get("dim")
    dims = [chosen] if isinstance(chosen, int) else list(chosen or range(margin.dim()))
    value = operands[threshold].expand_as(margin)
    is_one = value.amax(dims, keepdim=True) == value.amin(dims, keepdim=True)
    is_tie = margin == 0
    itself = is_tie & is_one & (is_tie.sum(dims, keepdim=True) == 1)
    return margin.masked_fill(itself, torch.inf)


def _origin(node: Node) -> Node | None:
    """The order statistic whose values these are."""
    while node.target in _VIEWS:
        if node.target is operator.getitem and node.args[1] != 0:
            return None
        node = node.args[0]  # type: ignore[assignment]
    return node if node.target in _STATISTICS else None
