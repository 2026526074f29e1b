"""The graphs of a page: which are compared with which, the controls, pictures of rewrites, and the frame of the lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..diff import Diff, diff_graphs
from ..outline import Outline
from .graph_data import Comparison
from .markup import Html, element
from .neighbourhood import neighbourhoods
from .parts import section


def comparisons_of(steps: Sequence[tuple[str, Outline]], diffs: Sequence[Diff] | None) -> list[Comparison]:
    """Each step with the one before it, then the last with the first."""
    outlines = [outline for _, outline in steps]
    last = len(steps) - 1
    each = diffs if diffs is not None else [diff_graphs(*pair) for pair in pairwise(outlines)]
    found = [(number, number + 1, diff) for number, diff in enumerate(each)]
    return [*found, (0, last, diff_graphs(outlines[0], outlines[last]))] if last > 1 else found


def graphs(steps: Sequence[tuple[str, Outline]], comparisons: Sequence[Comparison]) -> Html:
    """The controls and a frame that the script fills; pictures of rewrites stand here already."""
    options, pictures = [], []
    for number, (before, after, diff) in enumerate(comparisons):
        several = len(comparisons) > 1 and number == len(comparisons) - 1
        name = f"{'whole run: ' if several else ''}{steps[before][0]} → {steps[after][0]}"
        counts = ", ".join(f"{count} {kind}" for kind, count in diff.counts.items() if count) or "nothing changed"
        options.append(element("option", f"{name} ({counts})", value=number))
        drawn = neighbourhoods(diff, before, after)
        if drawn is not None:
            head = element("noscript", element("h3", name))
            pictures.append(element("div", head, drawn, class_="drawn", data_comparison=number, hidden=number > 0))
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
