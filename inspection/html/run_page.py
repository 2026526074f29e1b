"""One page with everything a reviewer of a run reads before approving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..diff import Diff
from ..outline import Outline
from .decisions import decisions
from .evidence import verification
from .graph_data import Facts, Memory, graph_data
from .graphs import comparisons_of, graphs
from .page import page
from .refusals import refusals
from .storage import storage
from .summary import summary

CONTENTS = (
    ("summary", "Summary"),
    ("graphs", "Graphs"),
    ("storage", "Storage"),
    ("refusals", "Not done"),
    ("decisions", "Decisions"),
    ("verification", "Verification"),
)


def render(
    report: Mapping[str, Any],
    steps: Sequence[tuple[str, Outline]],
    facts: Facts,
    *,
    memory: Memory = MappingProxyType({}),
    title: str = "foldfx",
    diffs: Sequence[Diff] | None = None,
) -> str:
    """The page of one run, the same bytes for the same arguments.

    Args:
        report: `Report.to_dict()`, or a run directory's report.json.
        steps: what was done and the graph it left, first "captured"; at least one.
        facts: `facts_to_dict` of the first graph.
        memory: `memory_to_dict` of the first graph.
        title: of the page.
        diffs: what each step but the first changed, where it is known already.

    Returns:
        HTML. Text of the model is escaped, its graphs are data, and the page's policy lets no script but its own run.
    """
    comparisons = comparisons_of(steps, diffs)
    whole = comparisons[-1][2] if comparisons else None
    sections = [
        summary(report, whole),
        graphs(steps, comparisons),
        storage(report, whole),
        refusals(report, [name for name, _ in steps]),
        decisions(report),
        verification(report),
    ]
    torch = f", torch {report['torch']}" if "torch" in report else ""
    foot = f"foldfx report, schema {report['schema_version']}{torch}"
    return page(title, report["status"], CONTENTS, sections, graph_data(steps, comparisons, facts, memory), foot)
