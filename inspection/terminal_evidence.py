"""What the report on a terminal says about decisions and verification: equal evidence once, with the worst figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from .html.parts import number
from .probe_lines import probe_lines, ranges
from .report import COMPARED, covered
from .terminal_parts import MOST_SHOWN, aligned, indented, left_out, lines, listed, literal, section

VERDICTS = {"equivalent_on": "bold green", "different": "bold red", "undecided": "bold yellow"}
"""How they are shown."""

_FIGURES = {"max-abs": "max_abs", "relative L2": "relative_l2"}
"""Heads of columns, and what the data calls them."""


def decisions(found: Sequence[Mapping[str, Any]]) -> Group | None:
    """Where floats become discrete, those with the most tokens that flip first; None where they do not."""
    if not found:
        return None
    shown = [part for each in sorted(found, key=_firmness)[:MOST_SHOWN] for part in _decision(each)]
    return section("where tables and floats become decisions", *shown, *filter(None, [left_out(found)]))


def _firmness(decision: Mapping[str, Any]) -> tuple[int, int]:
    probe = decision["probe"] or {}
    return -len(probe.get("flips", ())), -probe.get("fragile", 0)


def _decision(decision: Mapping[str, Any]) -> list[RenderableType]:
    over = "token ids alone" if decision["token_only"] else "context"
    feeds = f", feeds {', '.join(decision['feeds'])}" if decision["feeds"] else ""
    said = literal(f": {decision['kind']} of {decision['score']}, over {over}{feeds}")
    head = Text.assemble(literal(decision["node"], "bold"), said, literal(f" ({decision['at']})", "dim"))
    probe = decision["probe"]
    if probe is None:
        return [head]
    told = [literal(text.strip()) for text in probe_lines({**probe, "flips": []})]
    return [head, *map(indented, [*told, *_flips(probe)])]


def _flips(probe: Mapping[str, Any]) -> list[RenderableType]:
    """Tokens that choose otherwise in some calls, the worst first."""
    flips = sorted(probe.get("flips", ()), key=lambda flip: -(flip["error"] or 0))
    rows = [
        (
            flip["token"],
            f"{flip['margin']:.2e}",
            "no such call" if flip["error"] is None else number(flip["error"]),
            "order" if flip["order_only"] else "choice",
            ranges(flip["counts"]),
        )
        for flip in flips
    ]
    title = Text(f"{len(flips):,} token(s) fall otherwise in calls of some row counts than in bulk:", "yellow")
    heads = ("token", "margin", "outputs differ by", "changes", "in calls of … rows")
    return [title, aligned(heads, rows, right=heads[:3])] if rows else []


def verification(data: Mapping[str, Any]) -> Group:
    """The verdict, what was compared with the worst figures, and why it is not another one."""
    found = data["verification"]
    about = ", about the candidate that was given up" if data["status"] == "rolled_back" else ""
    title = Text.assemble(("verification: ", "bold"), (found["verdict"], VERDICTS[found["verdict"]]), about)
    outputs = (f"complete outputs of {found['examples']:,} example(s)", *_figures([found["outputs"]]))
    heads = ("compared", "equal", *_FIGURES)
    table = aligned(heads, [outputs, *_checks(found["layouts"])], right=[*_FIGURES])
    seen: dict[str, list[str]] = {}
    for probe, said in found["probes"].items():
        seen.setdefault(said, []).append(probe)
    told = [
        *(f"{', '.join(listed(probes))}: {said}" for said, probes in seen.items()),
        *(f"ids {name}: verified with {', '.join(map(str, ranks))} dimension(s)" for name, ranks in found["ranks"].items()),
        *found["because"][:MOST_SHOWN],
    ]
    more = left_out(found["because"])
    return section(title, table, *([lines(*told)] if told else []), *([more] if more else []))


def _checks(layouts: Iterable[Mapping[str, Any]]) -> list[tuple[Text | str, ...]]:
    """A row for all tables that were compared in the same calls, as far, and are as equal."""
    tables: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for each in layouts:
        tables.setdefault((COMPARED[each["kind"]], covered(each), _equal(each), each["table"]), []).append(each)
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for (*same, _), found in tables.items():
        calls = "; ".join(f"{each['layout']} {each['shape']}" for each in found)
        alike.setdefault((*same, calls), []).extend(found)
    rows: list[tuple[Text | str, ...]] = []
    for (what, ids, _, calls), found in alike.items():
        tabulated = listed(list(dict.fromkeys(each["table"] for each in found)))
        rows.append((lines(f"{what} {', '.join(tabulated)}: {ids}", literal(calls, "dim")), *_figures(found)))
    return rows


def _figures(found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """In which sense all are equal, and the worst differences."""
    worst = [
        max((each[name] for each in found), key=lambda value: math.inf if value is None else value)
        for name in _FIGURES.values()
    ]
    return _equal(found[0]), *map(number, worst)


def _equal(figures: Mapping[str, Any]) -> str:
    return "bitwise" if figures["bitwise"] else "in value" if figures["exact"] else ""
