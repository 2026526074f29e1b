"""Where floats become discrete: margins, fragile tokens, and what the other choice would do to the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..probe_lines import probe_lines, ranges
from .charts import margin_histogram
from .markup import Html, element, table
from .parts import foldable, node_button, number, section

MOST_TOKENS = 64


def decisions(report: Mapping[str, Any]) -> Html:
    found = [_decision(each) for each in report["decisions"]]
    none = element("p", "No float of this model becomes a choice: nothing can flip.", class_="quiet")
    return section("decisions", "Decisions", found or none)


def _decision(decision: Mapping[str, Any]) -> Html:
    probe = decision["probe"]
    over = "token ids alone" if decision["token_only"] else "context"
    feeds = f"; feeds {', '.join(decision['feeds'])}" if decision["feeds"] else ""
    head = element("h3", node_button(decision["node"]), f" {decision['kind']} of {decision['score']}")
    place = element("p", f"{decision['at']}, over {over}{feeds}", class_="quiet")
    if probe is None:
        return element("article", head, place, element("p", "Not probed for near ties."))
    lines = [element("li", text.strip()) for text in probe_lines({**probe, "flips": []})]
    plot = margin_histogram(probe, decision["node"]) if probe["margins"]["examined"] else None
    return element("article", head, place, _flips(probe), plot, element("ul", lines), _tokens(probe), _nearest(probe))


def _flips(probe: Mapping[str, Any]) -> Html | None:
    """Tokens that choose otherwise in some calls, the worst first."""
    flips = sorted(probe.get("flips", ()), key=lambda flip: -(flip["error"] or 0))
    if not flips:
        return None
    rows = [
        (
            str(flip["token"]),
            f"{flip['margin']:.2e}",
            "not known" if flip["error"] is None else number(flip["error"]),
            "order only" if flip["order_only"] else "another choice",
            ranges(flip["counts"]),
        )
        for flip in flips[:MOST_TOKENS]
    ]
    title = f"{len(flips):,} token(s) flip: they fall otherwise in calls of some row counts than in bulk"
    heads = ("token", "margin", "outputs differ by up to", "what changes", "in calls of … rows")
    return element("div", element("h4", title), table(heads, rows), class_="card warning")


def _tokens(probe: Mapping[str, Any]) -> Html | None:
    tokens = probe.get("tokens", ())
    if not tokens:
        return None
    rows = [(str(each["token"]), number(each["margin"])) for each in tokens[:MOST_TOKENS]]
    more = f", the nearest {MOST_TOKENS}" if len(tokens) > MOST_TOKENS else ""
    return element(
        "details", element("summary", f"Tokens nearest to a tie: {len(tokens):,}{more}"), table(("token", "margin"), rows)
    )


def _nearest(probe: Mapping[str, Any]) -> Html | None:
    nearest = probe.get("nearest", ())
    if not nearest:
        return None
    rows = [(number(each["margin"]), str(each["tokens"])[:400]) for each in nearest]
    heads = ("margin", "token ids of the call")
    return foldable(f"Calls nearest to a tie: {len(nearest)}", table(heads, rows), opened=False)
