"""Hashed choices: what a token id selects by a table of integers that the model already holds, as in hash routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from .decisions import reached_observables
from .facts import Facts
from .program import Program
from .provenance import where
from .tokens import TableLookup, table_lookups

aten = torch.ops.aten


@dataclass(frozen=True)
class HashedChoice:
    """A lookup of integers by token ids alone, whose result is an index or is told apart by equality.

    It is exact, and a table: there is nothing to fold and nothing that could flip.

    Attributes:
        node: the lookup.
        table: the state read, [V, …] integers.
        selects: the nodes that choose by it.
        feeds: what it reaches, as in `Decision`.
    """

    node: Node
    table: str
    selects: tuple[Node, ...]
    feeds: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The keys of `Decision.to_dict`; the score is the table."""
        return {
            "node": self.node.name,
            "at": where(self.node),
            "kind": "lookup",
            "score": self.table,
            "token_only": True,
            "feeds": list(self.feeds),
        }


def find_hashed(program: Program, facts: Facts) -> list[HashedChoice]:
    """Every hashed choice of a program, in graph order.

    Not among them: integer tables of which only numbers are computed, and those read at what depends on context.
    """
    lookups = table_lookups(program.graph)
    choosing: dict[Node, list[TableLookup]] = {}
    for lookup in lookups:
        choosing.setdefault(lookup.index, []).append(lookup)
    feeds = reached_observables(program)
    found: dict[Node, HashedChoice] = {}
    for lookup in lookups:
        table, node = lookup.node.args[0], lookup.node
        if isinstance(table, Node) and table.op == "get_attr" and _is_integer(node) and facts[node].token_only:
            selects = _selects(node, choosing)
            if selects:
                found[node] = HashedChoice(node, str(table.target), selects, tuple(feeds[node]))
    return list(found.values())


def _selects(chosen: Node, choosing: Mapping[Node, list[TableLookup]]) -> tuple[Node, ...]:
    """What reads the integers, or others computed from them, as an index, or compares them for equality."""
    found: dict[Node, None] = {}
    seen, stack = {chosen}, [chosen]
    while stack:
        node = stack.pop()
        found |= dict.fromkeys(lookup.node for lookup in choosing.get(node, ()))
        found |= dict.fromkeys(user for user in node.users if user.target in _EQUALITY)
        more = [user for user in node.users if user not in seen and _is_integer(user)]
        seen.update(more)
        stack += more
    return tuple(sorted(found))


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype != torch.bool


_EQUALITY = (aten.eq.Scalar, aten.eq.Tensor, aten.ne.Scalar, aten.ne.Tensor)
