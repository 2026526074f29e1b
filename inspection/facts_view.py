"""The facts of a program as a table, as text and as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from torch.fx import Node

from ..analysis.facts import Facts
from ..analysis.provenance import where
from ..analysis.rows import show


def facts_to_dict(facts: Facts, nodes: Iterable[Node] | None = None) -> dict[str, Any]:
    """One entry a node, of all or of `nodes`; JSON-serialisable."""
    return {
        "schema_version": 1,
        "values": [
            {
                "name": node.name,
                "op": str(node.target),
                "depends_on": [str(source) for source in sorted(fact.depends_on)],
                "token_only": fact.token_only,
                "rows": None if fact.rows is None else show(fact.rows),
                "because": fact.because.text,
                "stands_on": [parent.name for parent in fact.because.parents],
                "at": where(node),
            }
            for node in (facts if nodes is None else nodes)
            for fact in [facts[node]]
        ],
    }


def facts_text(facts: Facts) -> str:
    """For a pipe: every computed value whole, what it depends on and why."""
    lines = []
    for node, fact in facts.items():
        if node.op == "call_function":
            layout = "" if fact.rows is None else f", laid out {show(fact.rows)}"
            lines += [f"{node.name} depends on: {fact.describe()}{layout}", f"  {where(node)}: {fact.because.text}"]
    return "\n".join(lines)


def facts_table(facts: Facts) -> Table:
    """For a terminal: every computed value, token-only ones first to see."""
    table = Table("value", "depends on", "rows", "because", "at")
    for node, fact in facts.items():
        if node.op == "call_function":
            style = "green" if fact.token_only else "dim" if fact.constant else None
            rows = "" if fact.rows is None else show(fact.rows)
            table.add_row(
                node.name,
                fact.describe(),
                rows.replace("[", r"\["),
                fact.because.text.replace("[", r"\["),
                where(node),
                style=style,
            )
    return table
