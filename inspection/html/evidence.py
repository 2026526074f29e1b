"""What verification showed, and what it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .charts import errors_by_class
from .coverage import not_covered
from .markup import Html, element, joined, table
from .parts import MOST_LISTED, Report, badge, foldable, number, section, shortened


def verification(report: Report) -> Html:
    found = report["verification"]
    gaps = element("ul", (element("li", text) for text in not_covered(report)))
    fixed = [element("li", f"{each['input']}: {each['what']}") for each in report["specialised"]]
    return section(
        "verification",
        "Verification",
        element("p", badge(found["verdict"]), _subject(report)),
        _because(found["because"]),
        element("div", element("h3", "Not covered"), gaps, class_="card warning"),
        errors_by_class(found),
        _comparisons(found),
        _probes(found),
        _classes(report),
        joined(element("h3", "Fixed at capture"), element("ul", fixed)) if fixed else None,
    )


def _subject(report: Report) -> str:
    if report["status"] == "rolled_back":
        return " This is about the candidate that was given up; the module is the captured graph."
    return "" if report["status"] == "accepted" else " This is about the captured graph."


def _because(reasons: Sequence[str]) -> Html | None:
    if not reasons:
        return None
    items = element("ul", (element("li", text) for text in reasons[:MOST_LISTED]))
    return foldable(shortened("reason(s)", len(reasons)), items, opened=len(reasons) <= 4)


def _comparisons(found: Mapping[str, Any]) -> Html:
    rows: list[tuple[str, ...]] = [("complete outputs", f"{found['examples']:,} example call(s)", *_figures(found["outputs"]))]
    rows += [
        (f"{each['kind']} {each['table']}, {each['layout']} {each['shape']}", _covered(each), *_figures(each))
        for each in found["layouts"]
    ]
    listed = table(("compared", "on", "max-abs", "relative L2", "equal"), rows)
    return foldable(f"All {len(rows):,} comparisons", listed, opened=len(rows) <= 12)


def _covered(layout: Mapping[str, Any]) -> str:
    if layout["tokens"] == layout["domain"]:
        return f"all {layout['domain']:,} ids"
    return f"{layout['tokens']:,} of {layout['domain']:,} ids" if layout["tokens"] else "no rows"


def _figures(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """Largest difference, relative distance, and in which sense the values are equal."""
    equal = "bit by bit" if found["bitwise"] else "in value" if found["exact"] else "no"
    return number(found["max_abs"]), number(found["relative_l2"]), equal


def _probes(found: Mapping[str, Any]) -> Html | None:
    probes = found["probes"]
    if not probes:
        return None
    title = f"Ids outside the domain, and sizes 0 and 1: {len(probes)} probes"
    return foldable(title, table(("probe", "what both sides did"), probes.items()), opened=False)


def _classes(report: Report) -> Html | None:
    rules = [rule for each in report["rewrites"] for rule in each["classes"]]
    texts = [text for rule in rules for text in (rule["rule"], *rule["evidence"])]
    texts += [f"{each['node']} runs on {each['kernel']} ({each['provider']})" for each in report["kernels"]]
    lines = element("ul", (element("li", text) for text in texts))
    return foldable("Execution classes and kernels", lines, opened=False) if texts else None
