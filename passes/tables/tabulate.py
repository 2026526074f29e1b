"""Tables: the values of a region for every row of its domain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import sympy
import torch
from torch.fx import Node

from ..._torch import size_expression, static_size
from .region import Region, RegionError
from .runner import Ids, RegionRunner

CHUNK_BYTES = 32 << 20
SMALLEST_CHUNK, LARGEST_CHUNK = 256, 4096

BLOCK = 256
"""Ids prepared, and rows compared, at once."""

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, rows done, rows in all)."""


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def tokens_of(region: Region, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The id of each input for 1-D table row numbers, in the dtype the input was traced with."""
    result = {}
    for node, domain in reversed(list(zip(region.inputs, region.domains, strict=True))):
        digit, rows = rows % domain.rows, rows // domain.rows
        traced = node.meta["val"]
        result[node.name] = (digit if domain.is_prefix else domain.ids()[digit]).to(traced.dtype).to(traced.device)
    return result


def shapes_of(region: Region, rows: int, outer: int = 1) -> dict[str, tuple[int, ...]]:
    """Shapes of ids that hold `rows` rows (or the next possible number) in the traced ranks.

    One dynamic axis takes the rows, the last of a single input or one that several inputs share; the first one takes
    `outer` of them where it is another. Other dynamic axes are 1, static ones keep their size.

    Raises:
        RegionError: several inputs have no dynamic axis in common, or static axes.
    """
    traced = {node.name: [size_expression(size) for size in node.meta["val"].shape] for node in region.inputs}
    static = {name: prod(int(size) for size in sizes if size.is_Integer) for name, sizes in traced.items()}
    dynamic = dynamic_axes(region)
    if len(traced) > 1 and (not dynamic or any(fixed != 1 for fixed in static.values())):
        raise RegionError(f"token inputs {region.name} share no dynamic axis to lay their combinations along")
    taken = {dynamic[0]: outer} if len(dynamic) > 1 else {}

    def extent(name: str, size: sympy.Expr) -> int:
        if size.is_Integer:
            return int(size)
        return -(-rows // (static[name] * prod(taken.values()))) if size == dynamic[-1] else taken.get(size, 1)

    return {name: tuple(extent(name, size) for size in sizes) for name, sizes in traced.items()}


def dynamic_axes(region: Region) -> list[sympy.Expr]:
    """The different symbols among the sizes of the ids, of several inputs those that occur once in each; outer ones first."""
    sizes = [[size_expression(size) for size in node.meta["val"].shape] for node in region.inputs]
    shared = [size for size in sizes[0] if len(sizes) == 1 or all(each.count(size) == 1 for each in sizes)]
    return list(dict.fromkeys(size for size in shared if not size.is_Integer))


def arrange(tokens: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """1-D tokens of each input as ids of the shapes given, the last one repeated to fill up."""
    result = {}
    for name, shape in shapes.items():
        room, each = prod(shape), tokens[name]
        if room != each.numel():
            each = torch.cat([each, each[-1:].expand(max(room - each.numel(), 0))])[:room]
        result[name] = each.reshape(shape)
    return result


@dataclass(frozen=True)
class Call:
    """One call of a region.

    Attributes:
        ids: the ids, by input.
        rows: the numbers of the table rows it answers, 1-D.
        places: where among the call's own rows those answers are; None for the first ones.
    """

    ids: Ids
    rows: torch.Tensor
    places: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """How many rows the region computes at once."""
        return max((each.numel() for each in self.ids.values()), default=0)

    def answers(self, computed: torch.Tensor) -> torch.Tensor:
        """Of computed rows [count, width] those that are answers, [rows, width]."""
        return computed[: self.rows.numel()] if self.places is None else computed[self.places]


Place = Callable[[dict[str, torch.Tensor]], Ids]
"""Lays 1-D tokens of each input out as the ids of a call."""


def calls(region: Region, step: int, start: int = 0, stop: int | None = None, place: Place | None = None) -> Iterator[Call]:
    """The rows start … stop-1 of the domain in calls of `step` rows, laid out by `place` (by the traced ranks if None)."""
    stop = region.domain if stop is None else stop
    return calls_of(region, torch.arange(start, stop), step, place)


def calls_of(region: Region, rows: torch.Tensor, step: int, place: Place | None = None) -> Iterator[Call]:
    """Any rows of the domain, 1-D numbers, in calls of `step`, or as many as the traced shape holds."""
    if not rows.numel():
        return
    if place is None:
        place = traced_place(region)
        step = fitting(region, step)
    for block in rows.split(max(BLOCK // step, 1) * step):  # type: ignore[no-untyped-call]
        tokens = {name: each.split(step) for name, each in tokens_of(region, block).items()}  # type: ignore[no-untyped-call]
        for number, part in enumerate(block.split(step)):
            yield Call(place({name: each[number] for name, each in tokens.items()}), part)


def fitting(region: Region, rows: int) -> int:
    """How many of `rows` a call in the traced ranks answers: static sizes may allow fewer."""
    return min(rows, prod(next(iter(shapes_of(region, rows).values()))))


def traced_place(region: Region, outer: int = 1) -> Place:
    """Lays tokens out in the traced ranks, as many as `outer` along the first axis."""
    shapes: dict[int, dict[str, tuple[int, ...]]] = {}

    def place(tokens: dict[str, torch.Tensor]) -> Ids:
        count = next(iter(tokens.values())).numel()
        if count not in shapes:
            shapes[count] = shapes_of(region, count, outer)
        return arrange(tokens, shapes[count])

    return place


def built_calls(region: Region, values: Sequence[Node]) -> Iterator[Call]:
    """The calls that tables of `values` are built with."""
    for start, stop in chunks(region.domain, sum(region.row_bytes(node) for node in values)):
        yield from calls(region, stop - start, start, stop)


def chunks(domain: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """`domain` cut into (start, stop) ranges of nearly equal length, so that no short last chunk is computed by
    another kernel than the rest."""
    most = min(max(CHUNK_BYTES // max(row_bytes, 1), SMALLEST_CHUNK), LARGEST_CHUNK)
    parts = -(-domain // most)
    edges = [domain * part // parts for part in range(parts + 1)]
    return pairwise(edges)


def tabulate(
    region: Region, values: Sequence[Node], progress: Progress = silent, alone: Collection[Node] = ()
) -> list[torch.Tensor]:
    """One table [rows, width] for each of `values`, by running the region over its domain in chunks.

    Tables of one dtype are column ranges of one allocation, in the order of `values`, so that packing them copies
    nothing; those of values in `alone` have their own.

    Raises:
        RegionError: the region cannot be run on ids alone.
    """
    run = RegionRunner(region, values)
    tables = _allocate(region, values, alone)
    for call in built_calls(region, values):
        start, stop = int(call.rows[0]), int(call.rows[-1]) + 1
        for table, found in zip(tables, run.rows(call.ids), strict=True):
            table[start:stop] = call.answers(found)
        progress("tabulating", stop, region.domain)
    return tables


def _allocate(region: Region, values: Sequence[Node], alone: Collection[Node]) -> list[torch.Tensor]:
    tables: dict[Node, torch.Tensor] = {}
    groups: dict[object, list[Node]] = {}
    for node in values:
        groups.setdefault(node if node in alone else node.meta["val"].dtype, []).append(node)
    for members in groups.values():
        traced, widths = members[0].meta["val"], [region.width(node) for node in members]
        packed = torch.empty((region.domain, sum(widths)), dtype=traced.dtype, device=traced.device)
        tables |= zip(members, packed.split(widths, dim=1) if len(members) > 1 else [packed], strict=True)  # type: ignore[no-untyped-call]
    return [tables[node] for node in values]


def has_dynamic_axis(region: Region) -> bool:
    """Whether calls of any number of rows are possible in the traced ranks."""
    return any(static_size(size) is None for node in region.inputs for size in node.meta["val"].shape)
