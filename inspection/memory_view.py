"""Whose memory every value of a program stands on, as data."""

from __future__ import annotations

from .._torch import storage_key
from ..analysis.aliases import Alias, analyze_aliases
from ..analysis.program import Program


def memory_to_dict(program: Program) -> dict[str, list[tuple[str, str]]]:
    """By value, whose memory it may stand on and whether it "must" or "may"; what stands on its own alone is left out.

    Memory is that of "state x", of an input, or of the value that made it.
    """
    aliases = analyze_aliases(program)
    held: dict[object, str] = {}
    for node, tensor in aliases.state.items():
        held.setdefault(storage_key(tensor), f"state {node.target}")
    found = {}
    for node, roots in aliases.roots.items():
        named = [(held.get(root, str(root)), kind) for root, kind in roots.items()]
        if named and named != [(node.name, Alias.MUST)]:
            found[node.name] = [(name, kind.name.lower()) for name, kind in named]
    return found
