"""One page about two graphs of which nothing else is known."""

from __future__ import annotations

from ..diff import DIFF_VERSION, Diff
from ..diff_text import hunks, printable
from .graph_data import graph_data
from .graphs import graphs
from .markup import Html, element, table
from .page import page
from .parts import MOST_LISTED, foldable, section, shortened
from .storage import state_changes

CONTENTS = (("summary", "Summary"), ("graphs", "Graphs"), ("state", "State"), ("changes", "Changes"))


def render_diff(diff: Diff) -> str:
    """The page of a diff, the same bytes for the same diff.

    Returns:
        HTML, as of `render`: self-contained, text of the model escaped.
    """
    steps = [(diff.before.label, diff.before), (diff.after.label, diff.after)]
    comparisons = [(0, 1, diff)]
    sections = [
        _summary(diff),
        graphs(steps, comparisons),
        section("state", "State", state_changes(diff) or element("p", "No state came, went or changed.")),
        _changes(diff),
    ]
    title = f"{diff.before.label} → {diff.after.label}"
    status = "equal" if diff.empty else "different"
    return page(
        title, status, CONTENTS, sections, graph_data(steps, comparisons, {}, {}), f"foldfx diff, schema {DIFF_VERSION}"
    )


def _summary(diff: Diff) -> Html:
    rows = [(name, f"{one:,}", f"{other:,}", f"{other - one:+,}") for name, one, other in diff.figures]
    counts = ", ".join(f"{count:,} {name}" for name, count in diff.counts.items() if count)
    return section(
        "summary",
        "Summary",
        element("p", "Equal: nothing differs but names." if diff.empty else counts),
        table(("", "before", "after", "change"), rows),
        None if diff.compares_metadata else element("p", "Metadata are not compared: one side is a bare graph."),
    )


def _changes(diff: Diff) -> Html:
    """Each group of changes to open, in the words of the text form."""
    found = hunks(diff)
    groups = [
        foldable(printable(each.title), element("pre", "\n".join(map(printable, each.lines))), opened=len(found) <= 3)
        for each in found[:MOST_LISTED]
    ]
    return section("changes", "Changes", element("p", shortened("group(s)", len(found))), groups)
