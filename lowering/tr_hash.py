"""A TR-Hash node as plain ATen, in the form whose shapes do not depend on ids."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.proxy_tensor import make_fx

from .._torch import as_traced, fake_mode_of
from ..runtime.tr_hash.call import Call
from ..runtime.tr_hash.traceable import traceable_forward


def inline_tr_hash(module: GraphModule, node: Node) -> tuple[Node, str]:
    """Compute `node` by ATen calls put before it, all experts masked.

    Ids outside the vocabulary do what the node says; under `out_of_range="error"` the read of the table raises IndexError.
    """
    values: Any = map_arg(node.args, lambda each: each.meta["val"])
    tensors = [value for value in values if isinstance(value, torch.Tensor)]

    def computed(*given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        arguments: list[Any] = [next(rest) if isinstance(value, torch.Tensor) else value for value in values]
        return traceable_forward(Call(*arguments))

    mode = fake_mode_of(tensors[0])
    with as_traced(mode):
        traced = make_fx(computed, tracing_mode="symbolic" if mode.shape_env else "fake")(*tensors)
    operands = [each for each in node.args if isinstance(each, Node)]
    return _copied(module.graph, traced.graph, operands), "aten masked-dense SwiGLU"


def _copied(graph: Graph, traced: Graph, operands: list[Node]) -> Node:
    """The nodes of `traced` in `graph`, with `operands` for its placeholders; returns the result's."""
    placeholders = [each for each in traced.nodes if each.op == "placeholder"]
    copies: dict[Node, Any] = dict(zip(placeholders, operands, strict=True))
    result = graph.graph_copy(traced, copies)
    assert isinstance(result, Node)
    return result
