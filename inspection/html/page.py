"""One page with everything a reviewer reads before approving: no network, no file beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..diff import Diff, diff_graphs
from ..outline import Outline
from .decisions import decisions
from .evidence import verification
from .graph_data import Facts, Memory, graph_data
from .markup import Html, data_script, element
from .neighbourhood import neighbourhoods
from .parts import section
from .refusals import refusals
from .storage import storage
from .summary import summary

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
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
    comparisons = _comparisons(steps, diffs)
    whole = comparisons[-1][2] if comparisons else None
    style, script = STYLE.read_text(encoding="utf-8"), SCRIPT.read_text(encoding="utf-8")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title}: {report['status']}"),
        element("style", Html(style)),
    )
    links = [element("li", element("a", name, href=f"#{identity}")) for identity, name in CONTENTS]
    sections = [
        summary(report, whole),
        _graphs(steps, comparisons),
        storage(report, whole),
        refusals(report, [name for name, _ in steps]),
        decisions(report),
        verification(report),
    ]
    body = element(
        "body",
        element("a", "Skip to the report", href="#summary", class_="skip"),
        element("header", element("h1", title), element("nav", element("ul", links), aria_label="Sections")),
        element("main", sections),
        element("footer", element("p", f"foldfx report, schema {report['schema_version']}", _torch(report), class_="quiet")),
        element("aside", id="panel", tabindex=-1, hidden=True, aria_label="About one value"),
        data_script("graph-data", graph_data(steps, comparisons, facts, memory)),
        element("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _comparisons(steps: Sequence[tuple[str, Outline]], diffs: Sequence[Diff] | None) -> list[tuple[int, int, Diff]]:
    """Each step with the one before it, then the last with the first."""
    outlines = [outline for _, outline in steps]
    last = len(steps) - 1
    each = diffs if diffs is not None else [diff_graphs(*pair) for pair in pairwise(outlines)]
    found = [(number, number + 1, diff) for number, diff in enumerate(each)]
    return [*found, (0, last, diff_graphs(outlines[0], outlines[last]))] if last > 1 else found


def _graphs(steps: Sequence[tuple[str, Outline]], comparisons: Sequence[tuple[int, int, Diff]]) -> Html:
    """The controls and a frame that the script fills; pictures of rewrites stand here already."""
    options, pictures = [], []
    for number, (before, after, diff) in enumerate(comparisons):
        several = len(comparisons) > 1 and number == len(comparisons) - 1
        name = f"{'whole run: ' if several else ''}{steps[before][0]} → {steps[after][0]}"
        counts = ", ".join(f"{count} {kind}" for kind, count in diff.counts.items() if count) or "nothing changed"
        options.append(element("option", f"{name} ({counts})", value=number))
        drawn = neighbourhoods(diff, before, after)
        if drawn is not None:
            pictures.append(element("div", drawn, class_="drawn", data_comparison=number, hidden=number > 0))
    stepper = element(
        "div",
        element("button", "← previous step", type="button", id="step-back"),
        element("label", "Step ", element("select", options, id="step")),
        element("button", "next step →", type="button", id="step-on"),
        class_="controls",
    )
    search = element(
        "div",
        element("label", "Search values, modules, lines ", element("input", type="search", id="search", autocomplete="off")),
        element("button", "↑ previous change", type="button", id="change-back"),
        element("button", "next change ↓", type="button", id="change-on"),
        class_="controls",
    )
    keys = "Keys: [ ] step, p n change, / search, ↑ ↓ ← → move among lines, Enter opens a value, Esc closes it."
    return section(
        "graphs",
        "Graphs, step by step",
        stepper if comparisons else None,
        pictures,
        search,
        element("p", keys, class_="quiet keys"),
        element("p", id="found", role="status"),
        element("ol", id="hits"),
        element("noscript", element("p", "The graphs are drawn by a script, which is turned off; all else is here.")),
        element("div", id="lines", role="group", aria_label="Lines of both graphs"),
    )  # fmt: skip


def _torch(report: Mapping[str, Any]) -> str:
    return f", torch {report['torch']}" if "torch" in report else ""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
