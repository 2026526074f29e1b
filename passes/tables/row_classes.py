"""Execution classes: which of several tables answers for a row, by row count and position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..verification.layout import Layout
from ..verification.layouts import FULL
from .region import Region
from .tabulate import Call, calls_of, shapes_of, tokens_of, traced_place


@dataclass(frozen=True)
class BuiltAt:
    """The calls one class's table was built with.

    Attributes:
        count: rows in a call; 0 for the bulk table, built in chunks.
        places: the positions whose rows were taken.
    """

    count: int
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowClasses:
    """A rule from (row count, position) to a class.

    Row counts are cut into intervals; in each, the last position's class holds for all later positions.

    Attributes:
        bounds: the last row count of each interval but the final, open one; ascending.
        classes: for each interval the class of positions 0, 1, …; class 0 is the bulk table.
        built: how each class's table was built.
        evidence: what was measured, for the report.
        stated: the user's, so that calls as a table was built with may have another one.
    """

    bounds: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    built: tuple[BuiltAt, ...]
    evidence: tuple[str, ...] = ()
    stated: bool = False

    @property
    def by_position(self) -> bool:
        """Whether some row count has rows of several classes."""
        return any(len(each) > 1 for each in self.classes)

    def of(self, count: int) -> torch.Tensor:
        """The class of each of `count` rows called at once, int64 [count]."""
        interval = self.classes[sum(bound < count for bound in self.bounds)]
        return torch.tensor([interval[min(place, len(interval) - 1)] for place in range(count)], dtype=torch.int64)

    def rule(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(bounds [k], classes [k+1, positions]) as int64 tensors, for use at run time."""
        width = max(map(len, self.classes))
        rows = [[*each, *[each[-1]] * (width - len(each))] for each in self.classes]
        return torch.tensor(self.bounds, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)

    def __str__(self) -> str:
        edges = [0, *self.bounds]
        spans = [
            _span(edges[place] + 1, self.bounds[place] if place < len(self.bounds) else None)
            for place in range(len(self.classes))
        ]
        return ", ".join(f"{span} rows: {_classes(each)}" for span, each in zip(spans, self.classes, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": str(self),
            "tables": [{"rows": each.count, "positions": list(each.places)} for each in self.built],
            "evidence": list(self.evidence),
        }


def _span(first: int, last: int | None) -> str:
    return f"{first} or more" if last is None else str(first) if first == last else f"{first}–{last}"


def _classes(each: Sequence[int]) -> str:
    return f"class {each[0]}" if len(each) == 1 else f"classes {', '.join(map(str, each))} by position"


def from_rows(found: Mapping[int, tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """(bounds, classes) of the shortest rule with the rows found; the largest row count stands for all above it.

    Args:
        found: for ascending row counts from 1 on, the class of every position. Between two counts that are not
            neighbours the later one's holds.
    """
    bounds: list[int] = []
    classes: list[tuple[int, ...]] = []
    for count, row in found.items():
        short = row[:1] if len(set(row)) == 1 else row
        if classes and classes[-1] == short and len(short) == 1:
            bounds[-1] = count
        else:
            bounds.append(count)
            classes.append(short)
    return tuple(bounds[:-1]), tuple(classes)


def class_layout(region: Region, number: int, built: BuiltAt) -> Layout:
    """The calls with which the table of class `number` was built."""
    at = "" if len(built.places) == built.count else f", positions {', '.join(map(str, built.places))}"
    shape = ", ".join(str(list(each)) for each in shapes_of(region, built.count).values())
    rows = torch.arange(region.domain)
    return Layout(
        f"class {number}", shape + at, rows, lambda rows: class_calls(region, built, rows), "", True, number, built.count == 1
    )


def end_layout(region: Region, count: int, exact: bool) -> Layout:
    """Calls of `count` rows, where a rule's interval ends or begins; a measured rule must hold there bit by bit."""
    calls = -(-min(region.domain, FULL) // count)
    rows = torch.arange(calls * count) % region.domain
    shape = ", ".join(str(list(each)) for each in shapes_of(region, count).values())
    return Layout(f"{count} rows", shape, rows, lambda rows: calls_of(region, rows, count), as_built=exact, single=count == 1)


def class_calls(region: Region, built: BuiltAt, rows: torch.Tensor) -> Iterator[Call]:
    """Calls of `built.count` rows that ask for `rows` at the positions `built.places`."""
    if built.count == 1:
        yield from calls_of(region, rows, 1)
        return
    place, places = traced_place(region), torch.tensor(built.places)
    for part in rows.split(places.numel()):  # type: ignore[no-untyped-call]
        filled = part[:1].repeat(built.count)
        filled[places[: part.numel()]] = part
        yield Call(place(tokens_of(region, filled)), part, places[: part.numel()])
