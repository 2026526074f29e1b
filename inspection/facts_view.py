"""The facts of a program as a table and as data."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..analysis.facts import Facts
from ..analysis.provenance import where
from ..analysis.rows import show


def facts_to_dict(facts: Facts) -> dict[str, Any]:
    """One entry a node, JSON-serialisable."""
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
            for node, fact in facts.items()
        ],
    }


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
