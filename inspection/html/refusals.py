"""What every pass did and did not do, by reason, with the calls that showed something wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Html, element, joined, table
from .parts import MOST_LISTED, Report, badge, cut, foldable, node_button, node_buttons, section, shortened

NO_PASS = frozenset({"captured", "lowering", "rollback"})
"""Steps that are no passes."""
LONGEST = 120
"""Characters of a reason that stand for its group."""
_NOT_DONE = ("refused", "no_match", "rejected", "disabled")


def refusals(report: Report, steps: Sequence[str]) -> Html:
    """Every pass with how often it did what, then what was not done, then where token-only values end.

    Args:
        report: the run's.
        steps: names of its steps; a pass among them that reports no outcome ran 0×.
    """
    examples = [_counterexample(each) for each in report["counterexamples"]]
    tried = [
        (", ".join(each["rewrites"]) or "no rewrite", cut(each["why"] or "agrees", 3 * LONGEST)) for each in report["trials"]
    ]
    return section(
        "refusals",
        "Done and not done",
        _passes(report["outcomes"], steps),
        element("h3", "Not done, by reason"),
        _groups(report["outcomes"]) or element("p", "Nothing was refused.", class_="quiet"),
        joined(element("h3", "Counterexamples"), examples) if examples else None,
        joined(element("h3", "Candidates tried"), table(("rewrites", "outcome"), tried)) if len(tried) > 1 else None,
        _blockers(report["blockers"]),
    )


def _passes(outcomes: Sequence[Mapping[str, Any]], steps: Sequence[str]) -> Html:
    names = dict.fromkeys([*(name for name in steps if name not in NO_PASS), *(each["pass"] for each in outcomes)])
    if not names:
        return element("p", "No pass ran.")
    counts = Counter((each["pass"], each["status"]) for each in outcomes)
    rows = [(name, f"ran {counts[name, 'applied']}×", *(str(counts[name, status]) for status in _NOT_DONE)) for name in names]
    return table(("pass", "rewrites", *(status.replace("_", " ") for status in _NOT_DONE)), rows)


def _groups(outcomes: Sequence[Mapping[str, Any]]) -> list[Html]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in outcomes:
        if each["status"] != "applied":
            groups.setdefault((each["status"], reason_kind(each["reason"])), []).append(each)
    return [_group(status, found) for (status, _), found in groups.items()]


def reason_kind(reason: str) -> str:
    """What reasons of one kind have in common: the first clause, without its figures."""
    return re.sub(r"[\d.,]+", "#", re.split("[;:] ", reason, maxsplit=1)[0])


def _group(status: str, found: Sequence[Mapping[str, Any]]) -> Html:
    items = [
        element(
            "li", element("strong", f"{each['pass']}, {each['subject']}"), f": {each['reason']} ", node_buttons(each["nodes"])
        )
        for each in found[:MOST_LISTED]
    ]
    first = found[0]["reason"].split("; ")[0]
    head = joined(badge(status), f" {len(found)}×: {cut(first, LONGEST)}")
    return foldable(head, element("ul", items), opened=len(found) <= 4)


def _counterexample(found: Mapping[str, Any]) -> Html:
    sides = "" if found["expected"] is None else f": the original has {found['expected']}, the candidate {found['found']}"
    tokens = f", token ids {', '.join(map(str, found['tokens']))}" if found["tokens"] else ""
    node = node_button(found["node"]) if found["node"] else None
    return element("p", f"{found['call']}: {found['where']}: {found['what']}{sides}{tokens} ", node)


def _blockers(blockers: Sequence[str]) -> Html | None:
    if not blockers:
        return None
    items = []
    for text in blockers[:MOST_LISTED]:
        name, space, rest = text.partition(" ")
        items.append(element("li", node_button(name), f"{space}{rest}"))
    listed = foldable(shortened("value(s)", len(blockers)), element("ul", items), opened=len(blockers) <= 12)
    return joined(element("h3", "Where token-only values end"), listed)
