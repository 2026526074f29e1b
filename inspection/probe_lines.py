"""What probes found out about one decision, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMED = 8
"""Tokens and calls that are named, at most; all of them are in the data."""


def probe_lines(probe: Mapping[str, Any] | None) -> list[str]:
    """Sentences on a decision's margins, fragile tokens and near ties; [] where it was not probed."""
    if probe is None:
        return []
    lines = [] if not probe["margins"]["examined"] else _enumerated(probe) if "fragile" in probe else _searched(probe)
    return [*lines, *([probe["note"]] if probe["note"] else [])]


def _enumerated(probe: Mapping[str, Any]) -> list[str]:
    margins = probe["margins"]
    lines = [
        f"{margins['examined']:,} tokens by margin, {_smallest(margins)}: {probe['histogram']}",
        f"{probe['fragile']:,} fragile, with a margin of at most {probe['floor']:.1e}, twice what scores deviate between calls",
    ]
    flips = sorted(probe["flips"], key=lambda flip: -(flip["error"] or 0))
    if flips:
        chosen = [flip for flip in flips if not flip["order_only"]]
        order = f", {len(flips) - len(chosen):,} of them in order only" if len(chosen) < len(flips) else ""
        lines.append(f"{len(flips):,} fall otherwise in calls of some row counts than in bulk{order}:")
        lines += [f"  {_flip(flip)}" for flip in flips[:NAMED]]
    if tied := [each["token"] for each in probe["tokens"] if each["margin"] == 0]:
        lines.append(f"exactly tied: {_listed(tied, len(tied))}")
    if probe["float32_share"] is not None:
        lines.append(f"{probe['float32_share']:.2%} of the tokens choose otherwise in float32")
    return lines


def _searched(probe: Mapping[str, Any]) -> list[str]:
    margins = probe["margins"]
    space = f"of {probe['space']:,}" if probe["space"] < 10**12 else f"of about 1e{len(str(probe['space'])) - 1}"
    whole = "all" if probe["contexts"] >= probe["space"] else f"{probe['contexts']:,} {space}"
    return [
        f"searched {whole} calls, budget {probe['budget']:,}; decisions by margin, {_smallest(margins)}: {probe['histogram']}",
        f"margins deviate by up to {probe['deviation']:.1e} between calls",
    ]


def _smallest(margins: Mapping[str, Any]) -> str:
    return "none with another outcome" if margins["smallest"] is None else f"the smallest {margins['smallest']:.2e}"


def _flip(flip: Mapping[str, Any]) -> str:
    counts = ranges(flip["counts"])
    error = "no such call of the whole model" if flip["error"] is None else f"outputs differ by up to {flip['error']:.2e}"
    return f"token {flip['token']}, margin {flip['margin']:.2e}, in calls of {counts} row(s): {error}"


def _listed(numbers: list[int], total: int) -> str:
    more = ", …" if total > NAMED else ""
    return ", ".join(map(str, numbers[:NAMED])) + more


def ranges(numbers: list[int]) -> str:
    """Ascending numbers, runs of them as from–to."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
