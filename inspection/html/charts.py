"""Three plots as SVG, all of horizontal bars: where bytes went, how near ties decisions are, how far values are off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .markup import Html, element

WIDTH, LABEL, PLOT, ROW = 720, 210, 330, 26
"""Pixels: the picture, the names on the left, the longest bar, one line."""
MOST_BARS = 40
CHARACTERS = 30
"""Of a name, at most; the whole of it is its tooltip."""


@dataclass(frozen=True)
class Bar:
    """From `start` to `end`, both from 0 to 1, with what it says; `kind` is a class of page.css."""

    label: str
    start: float
    end: float
    text: str
    kind: str = "plain"


def storage_waterfall(report: Mapping[str, Any]) -> Html:
    """Logical bytes of state before, what each rewrite freed and added, and after."""
    before, after = (report["storage"][when]["logical"] for when in ("before", "after"))
    steps = [(each["name"], each["bytes_after"], -each["bytes_before"]) for each in report["rewrites"]]
    left = after - before - sum(added + freed for _, added, freed in steps)
    bars = [("before", 0, before, f"{before:,} B", "plain")]
    level = before
    for name, added, freed in [*steps, *([("shared with others", max(left, 0), min(left, 0))] if left else [])]:
        for what, change, kind in (("freed by", freed, "good"), ("tables of", added, "new")):
            if change:
                bars.append((f"{what} {name}", level, level + change, f"{change:+,} B", kind))
                level += change
    bars.append(("after", 0, after, f"{after:,} B", "plain"))
    most = max([1, *(edge for _, one, other, *_ in bars for edge in (one, other))])
    found = [Bar(label, min(one, other) / most, max(one, other) / most, text, kind) for label, one, other, text, kind in bars]
    return _chart("Storage: logical bytes before, freed, added and after", found)


def margin_histogram(probe: Mapping[str, Any], name: str) -> Html:
    """How many decisions lie how far from another outcome, by power of ten; a logarithmic length."""
    margins, floor = probe["margins"], probe.get("floor")
    counts = [(f"from 1e{int(power):+03d}", count, 10.0 ** int(power)) for power, count in margins["powers_of_ten"].items()]
    counts = [*([("exactly tied", margins["ties"], 0.0)] if margins["ties"] else []), *counts]
    most = math.log10(1 + max((count for _, count, _ in counts), default=1))
    bars = [
        Bar(label, 0, math.log10(1 + count) / most, f"{count:,}", "bad" if floor is not None and least <= floor else "plain")
        for label, count, least in counts
    ]
    return _chart(f"Margins of {name}: how many decisions, by distance to another outcome (log scale)", bars)


def errors_by_class(verification: Mapping[str, Any]) -> Html:
    """The largest difference in each kind of call and execution class, against the limit for float32; logarithmic."""
    limit = float(verification["limits"]["max_abs"]["torch.float32"])
    worst: dict[str, float] = {}
    calls = [("complete outputs", verification["outputs"]), *((_call(each), each) for each in verification["layouts"])]
    for label, figures in calls:
        error = 0.0 if figures["bitwise"] else math.inf if figures["max_abs"] is None else float(figures["max_abs"])
        worst[label] = max(worst.get(label, 0.0), error)
    if not any(worst.values()):
        return element("p", f"Bit by bit equal in all {len(worst)} kinds of call.")
    finite = [error for error in worst.values() if 0 < error < math.inf]
    low = math.floor(math.log10(min([*finite, limit or 1e-12]))) - 1
    high = math.ceil(math.log10(max([*finite, limit or 1e-12]))) + 0.5

    def place(error: float) -> float:
        return 1.0 if math.isinf(error) else min(1.0, max(0.0, (math.log10(error) - low) / (high - low))) if error else 0.0

    bars = [
        Bar(label, 0, place(error), f"{error:.2e}" if error else "equal", "bad" if error > limit else "good")
        for label, error in worst.items()
    ]
    return _chart("Largest difference by kind of call (log scale)", bars, (place(limit), f"limit {limit:.0e}"))


def _call(layout: Mapping[str, Any]) -> str:
    return f"{layout['kind']}s, {layout['layout']}"


def _chart(title: str, bars: Sequence[Bar], marker: tuple[float, str] | None = None) -> Html:
    shown, top = bars[:MOST_BARS], 20 if marker else 4
    height = top + ROW * len(shown) + 4
    parts = [element("title", title)]
    for number, bar in enumerate(shown):
        middle = top + ROW * number + ROW / 2
        label = bar.label if len(bar.label) <= CHARACTERS else f"{bar.label[: CHARACTERS - 1]}…"
        name = element("text", label, element("title", bar.label), x=LABEL - 8, y=middle + 4, text_anchor="end")
        width = max(1.0, (bar.end - bar.start) * PLOT)
        left = LABEL + bar.start * PLOT
        shape = element(
            "rect", x=f"{left:.1f}", y=f"{middle - 8:.1f}", width=f"{width:.1f}", height=16, rx=2, class_=f"bar {bar.kind}"
        )
        text = element("text", bar.text, x=f"{left + width + 6:.1f}", y=middle + 4)
        parts += [name, shape, text]
    if marker:
        x = f"{LABEL + marker[0] * PLOT:.1f}"
        parts += [
            element("line", x1=x, x2=x, y1=top - 2, y2=height - 2, class_="limit"),
            element("text", marker[1], x=x, y=12, text_anchor="middle"),
        ]
    picture = element("svg", parts, viewBox=f"0 0 {WIDTH} {height}", width=WIDTH, height=height, role="img", aria_label=title)
    rest = element("p", f"{len(bars) - MOST_BARS} more are in the data", class_="quiet") if len(bars) > MOST_BARS else None
    caption = element("figcaption", title)
    return element("figure", caption, element("div", picture, class_="wide", tabindex=0), rest, class_="chart")
