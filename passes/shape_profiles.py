"""Execution classes by measurement: which row counts and positions round alike, and a table for each such class.

The same row may round differently with the number of rows computed together and its place among them, because
libraries choose their kernels by size. Rows are compared bit by bit; nothing is assumed about where kernels change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from .tables.region import Region, RegionError
from .tables.row_classes import BuiltAt, RowClasses, class_calls, from_rows
from .tables.runner import RegionRunner
from .tables.tabulate import Progress, has_dynamic_axis, shapes_of, tokens_of, traced_place
from .verification.bits import bits_of, same_bits
from .verification.layouts import runs_at_any_rank

DENSE = 64
"""Every row count up to this is measured."""

SPARSE = (65, 66, 67, 95, 96, 97, *range(127, 132), *range(255, 260), *range(511, 516), 777, *range(1023, 1028), 2048, 4096)
"""Larger row counts that are measured; where two neighbours among them differ, the change is found by bisection."""

SAMPLES = 64
"""Ids each row count is measured with, at least; every position sees at least 4."""

MOST = 8
"""Classes a rule may have."""

Tables = list[torch.Tensor]
"""One table [rows, width] for each value."""


@dataclass(frozen=True)
class Profile:
    """A class the user states: calls of at most `max_rows` rows use tables evaluated `evaluation_rows` rows at a time.

    Raises:
        ValueError: a number that is not a positive int.
    """

    max_rows: int
    evaluation_rows: int

    def __post_init__(self) -> None:
        for name in ("max_rows", "evaluation_rows"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"profile {name} must be a positive int, got {value!r}")


def as_profiles(stated: Sequence[Profile | Mapping[str, int]]) -> tuple[Profile, ...]:
    """User-stated profiles, checked.

    Raises:
        ValueError: none, unknown or missing keys, or `max_rows` not strictly increasing.
    """
    profiles = []
    for each in stated:
        if isinstance(each, Mapping) and set(each) != {"max_rows", "evaluation_rows"}:
            raise ValueError(f"a profile has the keys max_rows and evaluation_rows, not {sorted(each)}")
        profiles.append(each if isinstance(each, Profile) else Profile(**each))
    sizes = [profile.max_rows for profile in profiles]
    if not sizes or sizes != sorted(set(sizes)):
        raise ValueError(f"profiles must be given with strictly increasing max_rows, got {sizes}")
    return tuple(profiles)


def discover(region: Region, values: Sequence[Node], bulk: Tables, progress: Progress) -> tuple[RowClasses, list[Tables]]:
    """The classes of a region, and the tables of each; class 0 is `bulk`.

    Raises:
        RegionError: rows depend on more than their number and position, or on positions in calls of more than
            `DENSE` rows; or there are more than `MOST` classes.
    """
    _require_countable(region, values)
    search = _Search(region, values, bulk, progress)
    found = search.rows()
    if len(search.tables) == 1:
        raise RegionError("every row count and position measured rounds alike; tables by class would change nothing")
    bounds, classes = from_rows(found)
    search.require_shapes_alike(found)
    evidence = [
        f"measured at {torch.get_num_threads()} thread(s) for row counts {_listed(found)}: every position in each, at "
        f"least {SAMPLES} ids, bit by bit",
        *search.at_other_threads(found),
    ]
    return RowClasses(bounds, classes, tuple(search.built), tuple(evidence)), search.tables


def as_stated(
    region: Region, values: Sequence[Node], bulk: Tables, profiles: Sequence[Profile]
) -> tuple[RowClasses, list[Tables]]:
    """The classes the user states, and the tables of each.

    Raises:
        RegionError: positions of one evaluation disagree bit by bit, so that a table for the row count alone would be
            wrong for some of them.
    """
    _require_countable(region, values)
    tables, built = [bulk], [BuiltAt(0)]
    run = RegionRunner(region, values)
    for profile in profiles:
        tables.append(_repeated(region, run, bulk, profile.evaluation_rows))
        built.append(BuiltAt(profile.evaluation_rows, tuple(range(profile.evaluation_rows))))
    bounds = tuple(profile.max_rows for profile in profiles)
    classes = tuple((number,) for number in (*range(1, len(tables)), 0))
    return RowClasses(bounds, classes, tuple(built), ("stated by the user",)), tables


def _repeated(region: Region, run: RegionRunner, bulk: Tables, count: int) -> Tables:
    """Every row alone, repeated `count` times in one call; all positions must agree."""
    place = traced_place(region)
    tables = [torch.empty_like(table) for table in bulk]
    for row in range(region.domain):
        computed = run.rows(place(tokens_of(region, torch.tensor([row]).expand(count))))
        for table, found in zip(tables, computed, strict=True):
            if not same_bits(found, found[:1].expand_as(found)):
                raise RegionError(
                    f"a profile of {count} evaluation rows is not possible: the positions of one call disagree bit by "
                    f"bit, first for row {row}; let the classes be discovered"
                )
            table[row] = found[0]
    return tables


def _require_countable(region: Region, values: Sequence[Node]) -> None:
    single = len(region.inputs) == 1 and all(map(region.is_trailing, values)) and has_dynamic_axis(region)
    if not single or prod(shapes_of(region, 1)[region.inputs[0].name]) != 1:
        raise RegionError(
            f"{region.name}: no classes by row count; they need one token input with dynamic sizes only, and values laid "
            "out like it"
        )


def _listed(counts: Mapping[int, object]) -> str:
    return f"1–{DENSE}, {', '.join(str(count) for count in counts if count > DENSE)}"


class _Search:
    """Finds the class of every position for a number of rows, and makes a new class where none fits.

    Attributes:
        tables: of each class.
        built: how each was built.
    """

    def __init__(self, region: Region, values: Sequence[Node], bulk: Tables, progress: Progress) -> None:
        self.tables: list[Tables] = [bulk]
        self.built = [BuiltAt(0)]
        self._region = region
        self._run = RegionRunner(region, values)
        self._place = traced_place(region)
        self._progress = progress

    def rows(self) -> dict[int, tuple[int, ...]]:
        """The class of each position, for every row count measured, ascending."""
        counts = [*range(1, DENSE + 1), *SPARSE]
        found: dict[int, tuple[int, ...]] = {}
        for number, count in enumerate(counts, 1):
            found[count] = self.row(count)
            self._progress("measuring execution classes", number, len(counts))
        for low, high in zip(counts[DENSE - 1 :], counts[DENSE:], strict=False):
            self._bisect(low, high, found)
        if scattered := [count for count, row in found.items() if count > DENSE and len(set(row)) > 1]:
            raise RegionError(f"positions of one call round differently in calls of {scattered[0]} rows, more than {DENSE}")
        return dict(sorted(found.items()))

    def _bisect(self, low: int, high: int, found: dict[int, tuple[int, ...]]) -> None:
        while high - low > 1 and set(found[low]) != set(found[high]):
            middle = (low + high) // 2
            found[middle] = self.row(middle)
            low, high = (middle, high) if set(found[middle]) == set(found[low]) else (low, middle)

    def row(self, count: int, shape: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The class of each position in calls of `count` rows; a class is made where no table agrees."""
        while True:
            agree = self._agreement(count, shape)
            if bool(agree.any(0).all()):
                return tuple(agree.int().argmax(0).tolist())
            if len(self.tables) == MOST:
                raise RegionError(f"more than {MOST} execution classes: calls of {count} rows agree with none of them")
            self._add_class(count, (~agree.any(0)).nonzero().reshape(-1).tolist())

    def _agreement(self, count: int, shape: tuple[int, ...] | None) -> torch.Tensor:
        """Which tables [classes] agree with the region at each position [count], for every id tried."""
        generator = torch.Generator().manual_seed(count)
        agree = torch.ones(len(self.tables), count, dtype=torch.bool)
        for _ in range(max(4, -(-SAMPLES // count))):
            rows = torch.randint(0, self._region.domain, (count,), generator=generator)
            tokens = tokens_of(self._region, rows)
            ids = self._place(tokens) if shape is None else {name: each.reshape(shape) for name, each in tokens.items()}
            for found, stored in zip(self._run.rows(ids), zip(*self.tables, strict=True), strict=True):
                bits = bits_of(found)
                for number, table in enumerate(stored):
                    agree[number] &= (bits == bits_of(table[rows])).all(1).cpu()
        return agree

    def _add_class(self, count: int, places: Sequence[int]) -> None:
        """A table from the first of `places` and those of them that always agree with it."""
        alike = torch.ones(len(places), dtype=torch.bool)
        for row in torch.linspace(0, self._region.domain - 1, min(16, self._region.domain)).long():
            for found in self._run.rows(self._place(tokens_of(self._region, row.expand(count)))):
                bits = bits_of(found)[list(places)]
                alike &= (bits == bits[:1]).all(1).cpu()
        built = BuiltAt(count, tuple(place for place, same in zip(places, alike.tolist(), strict=True) if same))
        tables = [torch.empty_like(table) for table in self.tables[0]]
        for call in class_calls(self._region, built, torch.arange(self._region.domain)):
            for table, found in zip(tables, self._run.rows(call.ids), strict=True):
                table[call.rows] = call.answers(found)
        self.built.append(built)
        self.tables.append(tables)

    def fits(self, count: int, row: Sequence[int], shape: tuple[int, ...] | None = None) -> bool:
        """Whether calls of `count` rows, in ids of `shape`, round as the classes `row` of their positions say."""
        agree = self._agreement(count, shape)
        return bool(agree[list(row), torch.arange(count)].all())

    def require_shapes_alike(self, found: Mapping[int, tuple[int, ...]]) -> None:
        """Ids of two dimensions must fall into the classes of their number."""
        if not runs_at_any_rank(self._region, self._run) and self._region.inputs[0].meta["val"].dim() != 2:
            return
        for count in (2, 3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 128, 512):
            factor = next((each for each in (2, 3) if count % each == 0), 1)
            for shape in {(count, 1), (factor, count // factor)}:
                if not self.fits(count, found.get(count) or self.row(count), shape):
                    raise RegionError(f"ids of shape {list(shape)} round otherwise than {count} ids in one dimension")

    def at_other_threads(self, found: Mapping[int, tuple[int, ...]]) -> list[str]:
        """Whether the rule holds at one thread, and at two."""
        here, said = torch.get_num_threads(), []
        for threads in sorted({1, 2} - {here}):
            with _threads(threads):
                other = [count for count in range(1, DENSE + 1) if not self.fits(count, found[count])]
            if other:
                counts = ", ".join(map(str, other))
                said.append(f"at {threads} thread(s) the row counts {counts} round otherwise: the rule is for {here} thread(s)")
            else:
                said.append(f"the same at {threads} thread(s), row counts 1–{DENSE}")
        return said


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
