"""Three plots as SVG, all of horizontal bars: where bytes went, how near ties decisions are, how far values are off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .markup import Html, element
from .parts import cut

WIDTH, PLOT, ROW, THICK = 460, 340, 38, 13
"""Pixels: the picture, the longest bar, a name and its bar, a bar."""
MOST_BARS = 40
CHARACTERS = 60
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
        Bar(
            label,
            0,
            place(error),
            "infinite" if math.isinf(error) else f"{error:.2e}" if error else "equal",
            "bad" if error > limit else "good",
        )
        for label, error in worst.items()
    ]
    return _chart("Largest difference by kind of call (log scale)", bars, (place(limit), f"limit {limit:.0e}"))


def _call(layout: Mapping[str, Any]) -> str:
    return f"{layout['kind']}s, {layout['layout']}"


def _chart(title: str, bars: Sequence[Bar], marker: tuple[float, str] | None = None) -> Html:
    """Each name above its bar, so that names may be long and the picture fits a phone."""
    shown, top = bars[:MOST_BARS], 18 if marker else 0
    height = top + ROW * len(shown) + 4
    parts = [element("title", title)]
    for number, bar in enumerate(shown):
        above = top + ROW * number
        width, left = max(1.0, (bar.end - bar.start) * PLOT), bar.start * PLOT
        place = {"x": f"{left:.1f}", "y": above + 18, "width": f"{width:.1f}", "height": THICK, "rx": 2}
        parts += [
            element("text", cut(bar.label, CHARACTERS), element("title", bar.label), x=0, y=above + 13),
            element("rect", **place, class_=f"bar {bar.kind}"),
            element("text", bar.text, x=f"{left + width + 6:.1f}", y=above + 29),
        ]
        if marker:
            x = f"{marker[0] * PLOT:.1f}"
            parts.append(element("line", x1=x, x2=x, y1=above + 15, y2=above + 34, class_="limit"))
    if marker:
        anchor = "start" if marker[0] < 0.2 else "middle"
        parts.append(element("text", marker[1], x=f"{marker[0] * PLOT:.1f}", y=12, text_anchor=anchor))
    picture = element("svg", parts, viewBox=f"0 0 {WIDTH} {height}", width=WIDTH, height=height, role="img", aria_label=title)
    rest = element("p", f"{len(bars) - MOST_BARS} more are in the data", class_="quiet") if len(bars) > MOST_BARS else None
    return element("figure", element("figcaption", title), picture, rest, class_="chart")
