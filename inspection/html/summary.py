"""What happened, at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..diff import Diff
from .markup import Html, element
from .parts import Report, badge, section

_VERDICTS = {
    "accepted": ("good", "Folded, and verified on everything listed under Verification."),
    "unchanged": ("quiet", "Nothing was rewritten; the module is the captured graph."),
    "rolled_back": ("bad", "Something was rewritten and did not verify; the module is the captured graph again."),
}


def summary(report: Report, whole: Diff | None) -> Html:
    """Status, figures, token inputs and what was applied.

    Args:
        report: the run's.
        whole: between its first and its last graph.
    """
    kind, sentence = _VERDICTS.get(report["status"], ("quiet", ""))
    applied = [each for each in report["outcomes"] if each["status"] == "applied"]
    rewrites = [element("li", badge("applied"), f" {each['pass']}, {each['subject']}: {each['reason']}") for each in applied]
    timing = element("p", f"Latency: {report['timing']['text']}") if report.get("timing") else None
    return section(
        "summary",
        "Summary",
        element("p", badge(report["status"], kind), f" {sentence}"),
        element("div", _cards(report, whole), class_="cards"),
        element("ul", _inputs(report), rewrites, _not_done(report)),
        timing,
    )


def _cards(report: Report, whole: Diff | None) -> list[Html]:
    before, after = report["storage"]["before"], report["storage"]["after"]
    cards = [_change(f"{name} bytes", before[name], after[name]) for name in ("logical", "backing")]
    if whole is not None:
        cards.append(_change("calls in the graph", whole.before.calls, whole.after.calls))
    found = report["verification"]
    checks = f"{found['examples']:,} call(s), {len(found['layouts']):,} table check(s)"
    probes = [each["probe"] for each in report["decisions"] if each["probe"]]
    flips = f"{sum(len(probe.get('flips', ())) for probe in probes):,} choose otherwise in some calls"
    return [
        *cards,
        _card("verification", found["verdict"].replace("_", " "), checks),
        _card("fragile tokens", f"{sum(probe.get('fragile', 0) for probe in probes):,}", flips if probes else "no decisions"),
    ]


def _change(name: str, before: int, after: int) -> Html:
    percent = f" ({100 * (after - before) / before:+.1f} %)" if before else ""
    change = f"{after - before:+,}{percent}" if after != before else "unchanged"
    return _card(name, f"{before:,} → {after:,}", change, "good" if after < before else "bad" if after > before else "quiet")


def _card(name: str, text: str, more: str, kind: str = "quiet") -> Html:
    return element("div", element("h3", name), element("p", text), element("p", more, class_=kind), class_="card")


def _inputs(report: Report) -> list[Html]:
    lines = [
        element("li", f"token input {name}: {domain['size']:,} ids", _reachable(domain), f" ({domain['because']})")
        for name, domain in report["tokens"].items()
    ]
    watched = ", ".join(report["observables"])
    return [*lines, *([element("li", f"observables, compared like outputs: {watched}")] if watched else [])]


def _reachable(domain: Mapping[str, Any]) -> str:
    return "" if domain["reachable"] == domain["size"] else f", {domain['reachable']:,} of them reachable"


def _not_done(report: Report) -> Html | None:
    others = Counter(each["status"] for each in report["outcomes"] if each["status"] != "applied")
    text = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(others.items()))
    return element("li", "not done: ", element("a", text, href="#refusals")) if others else None
