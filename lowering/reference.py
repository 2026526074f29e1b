"""The reference provider: plain ATen, so that a folded program exports and runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..runtime.lookup import LOOKUP
from ..runtime.tr_hash.op import TR_HASH_MLP
from .provider import Declined
from .tr_hash import inline_tr_hash

aten = torch.ops.aten


class Reference:
    """Takes every semantic operation of foldfx."""

    name = "reference"

    def lower(self, module: GraphModule, node: Node) -> str | Declined:
        """Replace `node` by ATen calls with the same values, exceptions included."""
        lowering = _LOWERINGS.get(node.target)
        if lowering is None:
            return Declined(f"no reference lowering for {node.target}")
        with module.graph.inserting_before(node):
            new, kernel = lowering(module, node)
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
        return kernel


def _call(module: GraphModule, like: Node, target: Any, args: Sequence[Any], value: torch.Tensor | None = None) -> Node:
    node = module.graph.call_function(target, tuple(args))
    node.meta.update(like.meta)
    if value is not None:
        node.meta["val"] = value
    return node


def _lookup(module: GraphModule, node: Node) -> tuple[Node, str]:
    table, ids, bounds = node.args
    assert isinstance(table, Node) and isinstance(ids, Node)
    if bounds == "embedding":
        return _call(module, node, aten.embedding.default, (table, ids)), "aten.embedding"
    if bounds == "index":
        return _call(module, node, aten.index.Tensor, (table, [ids])), "aten.index"
    return _gather(module, node, table, ids), "aten.gather"


def _gather(module: GraphModule, node: Node, table: Node, ids: Node) -> Node:
    """Raises RuntimeError for ids outside the table, where embedding and index raise IndexError.

    Ids are widened whatever their traced dtype: gather misreads an expanded int32 index.
    """
    rows, index = table.meta["val"], ids.meta["val"]
    width = rows.shape[1]
    wide = _call(module, node, aten._to_copy.default, (ids,), index.long())
    wide.kwargs = {"dtype": torch.int64}
    flat = _call(module, node, aten.reshape.default, (wide, [-1, 1]), wide.meta["val"].reshape(-1, 1))
    spread = _call(module, node, aten.expand.default, (flat, [-1, width]), flat.meta["val"].expand(-1, width))
    read = _call(module, node, aten.gather.default, (table, 0, spread), rows.gather(0, spread.meta["val"]))
    sizes: list[int | Node] = []
    for dim, size in enumerate(index.shape):
        sizes.append(size if isinstance(size, int) else _call(module, node, aten.sym_size.int, (ids, dim), size))
    return _call(module, node, aten.reshape.default, (read, [*sizes, width]))


_LOWERINGS: dict[Any, Callable[[GraphModule, Node], tuple[Node, str]]] = {LOOKUP: _lookup, TR_HASH_MLP: inline_tr_hash}
