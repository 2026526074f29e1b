"""Calls of other row counts: libraries choose kernels by the number of rows, and by the axis that they lie along."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..tables.region import Region
from ..tables.tabulate import Call, calls_of, dynamic_axes, traced_place
from .layout import Layout

COUNTS = (*range(1, 65), 65, 66, 67, 129, 257, 1031)
"""Rows in the calls that scores are compared in, and fragile tokens are run in."""

CALLED = (2, 3, 8, 16, 64, 1031)
"""Rows in the calls that tables are compared in besides those of other layouts."""

SAMPLE = 128
"""Rows of the domain asked for in calls of each count, evenly spaced."""

PLACES = 8
"""Places of a call that a fragile token is run at, at most."""


def counts_layout(region: Region) -> Layout:
    """Calls of every number of rows in `CALLED`, filled up with rows from the start."""
    rows = torch.linspace(0, region.domain - 1, min(region.domain, SAMPLE), dtype=torch.float64).long()
    return Layout("row counts", f"{CALLED[0]} to {CALLED[-1]} rows", rows, lambda rows: _calls(region, rows))


def near_ties_layout(region: Region, rows: torch.Tensor) -> Layout:
    """Fragile rows in every call they were run in to find those that fall otherwise."""
    shape = f"{COUNTS[0]} to {COUNTS[-1]} rows"
    return Layout(
        "near ties", shape, rows, lambda rows: (call for count in COUNTS for call, _ in fragile_calls(region, rows, count))
    )


def _calls(region: Region, rows: torch.Tensor) -> Iterator[Call]:
    for count in CALLED:
        filled = rows[torch.arange(-(-rows.numel() // count) * count) % rows.numel()]
        for outer in outers(region, count):
            yield from calls_along(region, filled, count, outer)


def fragile_calls(region: Region, rows: torch.Tensor, count: int) -> Iterator[tuple[Call, torch.Tensor]]:
    """Calls of `count` rows that ask for `rows`, at several places and along every axis, each with the numbers it answers."""
    for part in torch.arange(rows.numel()).split(count):  # type: ignore[no-untyped-call]
        filled = torch.cat([part, part[torch.arange(count - part.numel()) % part.numel()]])
        ways = [(shift, 1) for shift in range(min(count, PLACES))] + [(0, outer) for outer in outers(region, count)[1:]]
        for shift, outer in ways:
            asked = filled.roll(shift)
            for call in calls_along(region, rows[asked], count, outer):
                answered, asked = asked[: call.rows.numel()], asked[call.rows.numel() :]
                yield call, answered


def calls_along(region: Region, rows: torch.Tensor, count: int, outer: int) -> Iterator[Call]:
    """Calls of `count` rows, of which `outer` lie along the first of two axes."""
    return calls_of(region, rows, count, traced_place(region, outer) if outer > 1 else None)


def outers(region: Region, count: int) -> tuple[int, ...]:
    """How many of `count` rows may lie along the first of two axes: one, two or all."""
    if len(dynamic_axes(region)) < 2 or count < 2:
        return (1,)
    return (1, count) if count % 2 or count == 2 else (1, 2, count)
