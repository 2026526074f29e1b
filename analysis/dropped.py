"""What torch.export drops because nobody reads it, although a caller would notice: refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Graph, Node

from .._torch import is_mutable, is_overload, is_random, schema_arguments
from ..errors import CaptureError
from .provenance import where
from .tokens import TableLookup, origins, table_lookups


def refuse_dropped(graph: Graph, inputs: frozenset[str]) -> None:
    """Refuse a graph in which a dead table lookup would have raised, or dead random numbers moved the generator.

    Args:
        graph: as exported, before decomposition, which drops dead calls.
        inputs: names of the placeholders that are inputs of the call.

    Raises:
        CaptureError: with the operation, its line and the way out. A dead lookup is no reason where a live one refuses
            the same ids in the same way.
    """
    needed = _needed(graph)
    for node in graph.nodes:
        if node not in needed and _draws(node):
            raise CaptureError(
                f"forward draws random numbers it does not use: {node.name} ({where(node)}). The graph would not draw them, "
                "so all later ones would be others; remove the call"
            )
    lookups, reached = table_lookups(graph), origins(graph)
    alive = {place: lookup for place, lookup in enumerate(lookups) if lookup.node in needed}
    for place, lookup in enumerate(lookups):
        from_inputs = reached[lookup.index][0] & inputs
        covered = any(_refuses_as_well(each, lookup, reached, at < place) for at, each in alive.items())
        if lookup.node not in needed and from_inputs and not covered:
            raise CaptureError(
                f"forward looks up {lookup} and does not use the result. The graph would not look it up, so ids outside it "
                "would no longer raise, or raise another exception; remove the call"
            )


def _needed(graph: Graph) -> set[Node]:
    """The nodes that outputs and writes are computed from, and calls that are not plain ATen."""
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        root = node.op == "output" or (node.op == "call_function" and is_mutable(node.target) and "val" in node.meta)
        if root or node in needed:
            needed |= {node, *node.all_input_nodes}
    return needed


def _draws(node: Node) -> bool:
    if not is_overload(node.target) or not is_random(node.target):
        return False
    arguments = schema_arguments(node)
    return all(arguments.get(name, True) for name in ("train", "training"))


def _refuses_as_well(
    alive: TableLookup, dead: TableLookup, reached: Mapping[Node, tuple[frozenset[str], bool]], earlier: bool
) -> bool:
    """`alive` is read at the same ids, has no more rows, and refuses those ids in the same way, or before `dead` is asked."""
    moved_only = reached[alive.index][1] and reached[alive.index] == reached[dead.index]
    alike = alive.bounds == dead.bounds or (alive.bounds, dead.bounds) == ("embedding", "index")
    first = earlier and alive.bounds != "index"  # which takes negative ids
    return (alive.index is dead.index or moved_only) and alive.rows <= dead.rows and (alike or first)
