"""Execution classes by measurement: which row counts and positions round alike, and a table for each such class.

The same row may round differently with the number of rows computed together and its place among them, because
libraries choose their kernels by size. Rows are compared bit by bit; nothing is assumed about where kernels change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

import torch
from torch.fx import Node

from .._torch import static_size
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

_KEYS = {"max_rows", "evaluation_rows"}

_LARGEST = 2**63 - 1
"""The rule holds row counts in int64."""

Tables = list[torch.Tensor]
"""One table [rows, width] for each value."""


@dataclass(frozen=True)
class Profile:
    """A class the user states: calls of at most `max_rows` rows use tables evaluated `evaluation_rows` rows at a time.

    Raises:
        ValueError: a number that is not a positive int, or one beyond int64.
    """

    max_rows: int
    evaluation_rows: int

    def __post_init__(self) -> None:
        for name in ("max_rows", "evaluation_rows"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _LARGEST:
                raise ValueError(f"profile {name} must be a positive int, got {value!r}")


def as_profiles(stated: Sequence[Profile | Mapping[str, int]]) -> tuple[Profile, ...]:
    """User-stated profiles, checked.

    Raises:
        ValueError: not a sequence, none, not a mapping, unknown or missing keys, numbers that are not positive ints, or
            `max_rows` not strictly increasing.
    """
    if not isinstance(stated, Sequence) or isinstance(stated, str | bytes):
        raise ValueError(f"profiles must be a sequence of mappings with max_rows and evaluation_rows, got {stated!r}")
    profiles = []
    for each in stated:
        if not isinstance(each, Profile | Mapping) or (isinstance(each, Mapping) and set(each) != _KEYS):
            raise ValueError(f"a profile is a mapping with the keys max_rows and evaluation_rows, not {each!r}")
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
        f"least {SAMPLES} ids, bit by bit; counts between and beyond these are taken to round as their neighbours do",
        *search.at_other_threads(found),
    ]
    return RowClasses(bounds, classes, tuple(search.built), tuple(evidence)), search.tables


def as_stated(
    region: Region, values: Sequence[Node], bulk: Tables, profiles: Sequence[Profile]
) -> tuple[RowClasses, list[Tables]]:
    """The classes the user states, and the tables of each; profiles whose tables are equal are one class.

    Raises:
        RegionError: positions of one evaluation disagree bit by bit, so that a table for the row count alone would be
            wrong for some of them.
    """
    _require_countable(region, values)
    tables, built = [bulk], [BuiltAt(0)]
    run = RegionRunner(region, values)
    numbers: dict[int, int] = {}
    for count in dict.fromkeys(profile.evaluation_rows for profile in profiles):
        found = _repeated(region, run, bulk, count)
        twin = (number for number, other in enumerate(tables) if all(map(same_bits, other, found)))
        numbers[count] = next(twin, len(tables))
        if numbers[count] == len(tables):
            tables.append(found)
            built.append(BuiltAt(count, tuple(range(count))))
    bounds = tuple(profile.max_rows for profile in profiles)
    classes = (*((numbers[profile.evaluation_rows],) for profile in profiles), (0,))
    said = [f"evaluated {count} row(s) at once: class {number}" for count, number in numbers.items()]
    return RowClasses(bounds, classes, tuple(built), ("stated by the user", *said), stated=True), tables


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
        self._telling: dict[tuple[int, int], torch.Tensor] = {}
        self._found: dict[int, tuple[int, ...]] = {}
        self._known: dict[int, int] = {}

    def rows(self) -> dict[int, tuple[int, ...]]:
        """The class of each position, for every row count measured, ascending."""
        counts = [*range(1, DENSE + 1), *SPARSE]
        for number, count in enumerate(counts, 1):
            self._measure(count)
            self._progress("measuring execution classes", number, len(counts))
        known = 0
        while known < len(self.tables):
            known = len(self.tables)
            for count in list(self._found):
                self._measure(count)
            for low, high in pairwise(sorted(count for count in self._found if count >= DENSE)):
                self._bisect(low, high)
        if scattered := [count for count in sorted(self._found) if count > DENSE and len(set(self._found[count])) > 1]:
            raise RegionError(f"positions of one call round differently in calls of {scattered[0]} rows, more than {DENSE}")
        return dict(sorted(self._found.items()))

    def _measure(self, count: int) -> None:
        """Find the row of a count, unless it was found with all the tables there are now."""
        if self._known.get(count) != len(self.tables):
            self._found[count] = self.row(count)
            self._known[count] = len(self.tables)

    def _bisect(self, low: int, high: int) -> None:
        """Measure between two row counts until counts of different classes are neighbours."""
        if high - low > 1 and set(self._found[low]) != set(self._found[high]):
            middle = (low + high) // 2
            self._measure(middle)
            self._bisect(low, middle)
            self._bisect(middle, high)

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
        """Which tables [classes] agree with the region at each position [count], for every id tried.

        Tables that both agree with the ids drawn at random are told apart by ids for which they differ.
        """
        generator = torch.Generator().manual_seed(count)
        agree = torch.ones(len(self.tables), count, dtype=torch.bool)
        for _ in range(max(4, -(-SAMPLES // count))):
            self._try(torch.randint(0, self._region.domain, (count,), generator=generator), shape, agree)
        for one, other in combinations(range(len(self.tables)), 2):
            if bool((agree[one] & agree[other]).any()):
                rows = self._differing(one, other)
                self._try(rows[torch.randint(0, rows.numel(), (count,), generator=generator)], shape, agree)
        return agree

    def _try(self, rows: torch.Tensor, shape: tuple[int, ...] | None, agree: torch.Tensor) -> None:
        """Call the region for `rows`, and clear `agree` where a table differs."""
        tokens = tokens_of(self._region, rows)
        ids = self._place(tokens) if shape is None else {name: each.reshape(shape) for name, each in tokens.items()}
        for found, stored in zip(self._run.rows(ids), zip(*self.tables, strict=True), strict=True):
            bits = bits_of(found)
            for number, table in enumerate(stored):
                agree[number] &= (bits == bits_of(table[rows])).all(1).cpu()

    def _differing(self, one: int, other: int) -> torch.Tensor:
        """The rows in which two classes' tables differ; every row if they do not."""
        if (one, other) not in self._telling:
            pairs = zip(self.tables[one], self.tables[other], strict=True)
            differs = torch.stack([(bits_of(a) != bits_of(b)).any(1).cpu() for a, b in pairs]).any(0)
            self._telling[one, other] = (differs if bool(differs.any()) else ~differs).nonzero().reshape(-1)
        return self._telling[one, other]

    def _add_class(self, count: int, places: Sequence[int]) -> None:
        """A table from the first of `places` and those of them that always agree with it.

        Where the same rows at others of these places then come out different, from the first of them alone.
        """
        alike = torch.ones(len(places), dtype=torch.bool)
        for row in torch.linspace(0, self._region.domain - 1, min(16, self._region.domain)).long():
            for found in self._run.rows(self._place(tokens_of(self._region, row.expand(count)))):
                bits = bits_of(found)[list(places)]
                alike &= (bits == bits[:1]).all(1).cpu()
        built = BuiltAt(count, tuple(place for place, same in zip(places, alike.tolist(), strict=True) if same))
        tables = self._build(built, torch.arange(self._region.domain))
        if len(built.places) > 1:
            shuffled = torch.randperm(self._region.domain, generator=torch.Generator().manual_seed(count))
            if not all(map(same_bits, tables, self._build(built, shuffled))):
                built = BuiltAt(count, built.places[:1])
                tables = self._build(built, torch.arange(self._region.domain))
        self.built.append(built)
        self.tables.append(tables)

    def _build(self, built: BuiltAt, rows: torch.Tensor) -> Tables:
        """The tables that calls for `rows`, every row of the domain in any order, give."""
        tables = [torch.empty_like(table) for table in self.tables[0]]
        for call in class_calls(self._region, built, rows):
            for table, found in zip(tables, self._run.rows(call.ids), strict=True):
                table[call.rows] = call.answers(found)
        return tables

    def fits(self, count: int, row: Sequence[int], shape: tuple[int, ...] | None = None) -> bool:
        """Whether calls of `count` rows, in ids of `shape`, round as the classes `row` of their positions say."""
        agree = self._agreement(count, shape)
        return bool(agree[list(row), torch.arange(count)].all())

    def require_shapes_alike(self, found: Mapping[int, tuple[int, ...]]) -> None:
        """Ids of several dimensions must fall into the classes of their number."""
        sizes = [static_size(size) for size in self._region.inputs[0].meta["val"].shape]
        outer, *_, inner = [place for place, size in enumerate(sizes) if size is None] * 2
        free = runs_at_any_rank(self._region, self._run)
        for count in (2, 3, 4, 6, 8, 15, 16, 24, 32, 48, 64, 128, 512):
            factor = next((each for each in (2, 3) if count % each == 0), 1)
            pairs = ((count, 1), (factor, count // factor))
            traced = [tuple({outer: a, inner: b}.get(place, 1) for place in range(len(sizes))) for a, b in pairs]
            for shape in {*(pairs if free else ()), *(traced if outer != inner else ())}:
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
