"""Provenance of a rewrite: which values together became which, as 1:1, n:1, 1:n, n:m, or gone and new."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from .outline import Value


@dataclass(frozen=True)
class Lineage:
    """Removed values and the added ones that took their place.

    Attributes:
        before, after: keys, each in its graph's order.
        by: the passes that added them, where the graph says so.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    by: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Such as "4:1"; "1:0" for a value that is just gone, "0:1" for one that is just new."""
        return f"{len(self.before)}:{len(self.after)}"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "before": list(self.before), "after": list(self.after), "by": list(self.by)}


def find_lineage(
    removed: Sequence[Value],
    added: Sequence[Value],
    names: Mapping[str, str],
    replaced: Collection[tuple[str, str]],
) -> list[Lineage]:
    """Groups of removed and added values, in the order of their first removed, then of their first added value.

    Two belong together where one reads the other, where a reader that stays took one for the other, or where a pass
    says that it added one for the other.

    Args:
        removed, added: in their graphs' orders.
        names: key of every value of the graph before, by name.
        replaced: (removed key, added key) in one place of a reader that stays.
    """
    old, new = {value.key for value in removed}, {value.key for value in added}
    ties = nx.Graph()
    ties.add_nodes_from([*old, *new])
    for group, values in ((old, removed), (new, added)):
        ties.add_edges_from((value.key, operand) for value in values for operand in value.operands if operand in group)
    ties.add_edges_from(pair for pair in replaced if pair[0] in old and pair[1] in new)
    for value in added:
        ties.add_edges_from((value.key, key) for name in value.stands_for if (key := names.get(name)) in old)
    part = {key: number for number, keys in enumerate(nx.connected_components(ties)) for key in keys}
    groups: dict[int, tuple[list[Value], list[Value]]] = {}
    for side, values in enumerate((removed, added)):
        for value in values:
            groups.setdefault(part[value.key], ([], []))[side].append(value)
    return [
        Lineage(tuple(value.key for value in before), tuple(value.key for value in after), _makers(before, after))
        for before, after in groups.values()
    ]


def _makers(before: Sequence[Value], after: Sequence[Value]) -> tuple[str, ...]:
    """The passes that made `after`; not those that values which stand for the same were made by before."""
    known = {(value.made_by, value.stands_for) for value in before}
    return tuple(dict.fromkeys(each.made_by for each in after if each.made_by and (each.made_by, each.stands_for) not in known))
