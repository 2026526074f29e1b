"""The report of one run for a terminal: what happened at a glance, then tables of what was done, refused and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from .html.refusals import reason_kind
from .report import Report
from .terminal_evidence import VERDICTS, decisions, verification
from .terminal_parts import MOST_SHOWN, aligned, human_bytes, lines, listed, literal, section

FEW = 3
"""Reasons of one kind that are given in full."""

_STATUS = {"accepted": "bold green", "unchanged": "bold", "rolled_back": "bold red", "rejected": "red"}
_NOT_DONE = ("refused", "no_match", "rejected", "disabled")


def terminal_report(report: Report) -> Group:
    """Everything `str(report)` says, for a screen: equal things once, long lists shortened, bytes in human units."""
    data = report.data
    parts = (
        _storage(data["storage"]),
        _inputs(data),
        _applied(data),
        _not_done(data["outcomes"]),
        _blockers(data["blockers"]),
        decisions(data["decisions"]),
        verification(data),
        _trials(data["trials"], data["verification"]["because"]) if len(data["trials"]) > 1 else None,
        section("latency", literal(data["timing"]["text"])) if data["timing"] else None,
        _fixed(data["specialised"]),
    )
    return Group(_headline(data), *filter(None, parts))


def terminal_bisection(report: Report) -> Group:
    """Every candidate that a bisection tried, and the rewrites it found wrong; no list is shortened."""
    left_out = [each for each in report.data["outcomes"] if each["status"] == "rejected"]
    rows = [(each["pass"], lines(literal(each["subject"], "bold"), each["reason"])) for each in left_out]
    found = section("wrong", aligned(("pass", "what and why"), rows, most=None)) if rows else section("nothing is wrong")
    return Group(_headline(report.data), _trials(report.data["trials"], most=None), found)


def _headline(data: Mapping[str, Any]) -> Text:
    """Status, how much was done, what it makes of the bytes, the verdict, and whether tokens flip."""
    status, verdict = data["status"], data["verification"]["verdict"]
    before, after = data["storage"]["before"]["backing"], data["storage"]["after"]["backing"]
    counts = Counter(each["status"] for each in data["outcomes"])
    flips = sum(len(each["probe"].get("flips", ())) for each in data["decisions"] if each["probe"])
    facts = [
        *(Text(f"{counts[each]:,} {each.replace('_', ' ')}") for each in ("applied", *_NOT_DONE) if counts[each]),
        Text(f"{human_bytes(before)} → {human_bytes(after)}" if before != after else f"{human_bytes(before)} as before"),
        Text(verdict, VERDICTS[verdict]),
        *([Text(f"{flips:,} token(s) flip", "yellow")] if flips else []),
    ]
    return Text.assemble("foldfx: ", (status, _STATUS[status]), "   ", Text(" · ").join(facts))


def _storage(storage: Mapping[str, Mapping[str, int]]) -> Group:
    rows = []
    for kind, before in storage["before"].items():
        after = storage["after"][kind]
        change = after - before
        style = "green" if change < 0 else "red" if change > 0 else ""
        grown = f"{'+' if change > 0 else ''}{human_bytes(change)}"
        percent = f"{100 * change / before if before else 0:+.1f} %"
        rows.append((kind, human_bytes(before), human_bytes(after), Text(grown, style), Text(percent, style)))
    heads = ("bytes", "before", "after", "change", "percent")
    return section("storage", aligned(heads, rows, right=heads[1:]))


def _inputs(data: Mapping[str, Any]) -> Group | None:
    rows = [
        (name, f"{domain['size']:,}", f"{domain['reachable']:,}", domain["because"]) for name, domain in data["tokens"].items()
    ]
    heads = ("input", "ids", "reachable", "because")
    watched = [literal(f"observables, compared like outputs: {', '.join(data['observables'])}")] if data["observables"] else []
    return (
        section("token inputs", *([aligned(heads, rows, right=heads[1:3])] if rows else []), *watched)
        if rows or watched
        else None
    )


def _applied(data: Mapping[str, Any]) -> Group | None:
    found = [each for each in data["outcomes"] if each["status"] == "applied"]
    if not found:
        return None
    heads = ("pass", "freed", "added", "what and how")
    rows = [(each["pass"], *_bytes(each["figures"]), lines(literal(each["subject"], "bold"), each["reason"])) for each in found]
    told = [text for each in data["rewrites"] for rule in each["classes"] for text in rule["evidence"]]
    told += [f"{kernel}: {', '.join(listed(nodes))}" for kernel, nodes in _kernels(data["kernels"]).items()]
    return section("applied", aligned(heads, rows, right=heads[1:3]), *([lines(*dict.fromkeys(told))] if told else []))


def _bytes(figures: Mapping[str, Any]) -> list[str]:
    """What a rewrite freed and added; blank where its pass does not say."""
    return [human_bytes(figures[name]) if name in figures else "" for name in ("bytes_before", "bytes_after")]


def _kernels(claims: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The nodes that run on each kernel."""
    nodes: dict[str, list[str]] = {}
    for each in claims:
        nodes.setdefault(f"on {each['kernel']} ({each['provider']})", []).append(each["node"])
    return nodes


def _not_done(outcomes: Sequence[Mapping[str, Any]]) -> Group | None:
    kinds: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for each in outcomes:
        if each["status"] in _NOT_DONE:
            reasons = kinds.setdefault((each["status"], each["pass"], reason_kind(each["reason"])), {})
            reasons.setdefault(each["reason"], []).append(each["subject"])
    rows = [row for (status, name, _), reasons in kinds.items() for row in _reasons(status, name, reasons)]
    return section("not done", aligned(("pass", "what and why"), rows)) if rows else None


def _reasons(status: str, name: str, reasons: Mapping[str, list[str]]) -> list[tuple[Text, Text]]:
    """The first reasons of one kind in full, each once, below what they are about; of the others what they are about."""
    head = lines(Text(status.replace("_", " "), _STATUS.get(status, "yellow")), name)
    told = list(reasons.items())[:FEW]
    if others := [subject for subjects in list(reasons.values())[FEW:] for subject in subjects]:
        told.append(("the same kind of reason, with other names and figures", others))
    return [(head, lines(literal("; ".join(listed(subjects)), "bold"), reason)) for reason, subjects in told]


def _blockers(blockers: Sequence[str]) -> Group | None:
    rows = []
    for text in blockers:
        name, _, rest = text.partition(" ")
        place, _, why = rest.partition("): ")
        rows.append((literal(name, "bold"), Text.assemble(literal(why), literal(f" {place})", "dim"))))
    return section("where token-only values end", aligned(("value", "why"), rows)) if rows else None


def _trials(trials: Sequence[Mapping[str, Any]], because: Sequence[str] = (), most: int | None = MOST_SHOWN) -> Group:
    """The candidates; what the verification says of one is not said again."""
    rows = []
    for each in trials:
        known = because and each["why"] == "; ".join(because)
        why = "differs, as said under verification" if known else each["why"] or "agrees"
        rows.append((", ".join(listed(each["rewrites"], most)) or "no rewrite", why))
    return section("candidates tried", aligned(("rewrites", "outcome"), rows, most=most))


def _fixed(specialised: Sequence[Mapping[str, str]]) -> Group | None:
    inputs: dict[str, list[str]] = {}
    for each in specialised:
        inputs.setdefault(each["input"], []).append(each["what"])
    rows = [(name, "; ".join(found)) for name, found in inputs.items()]
    return section("fixed at capture", aligned(("input", "what"), rows)) if rows else None
