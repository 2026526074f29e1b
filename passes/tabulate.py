"""Tables: the values of a region for every id of its domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.fx import Node

from .._torch import static_size
from .region import Region
from .runner import RegionRunner

CHUNK_BYTES = 64 << 20
SMALLEST_CHUNK, LARGEST_CHUNK = 256, 8192

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, rows done, rows in all)."""


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def shape_of(region: Region, rows: int) -> tuple[int, ...]:
    """The shape of ids that holds `rows` rows (or the next possible number) in the traced rank.

    Static axes keep their traced size; of the dynamic ones the last takes the rows, the others are 1.
    """
    traced = [static_size(size) for size in region.ids.meta["val"].shape]
    fixed = 1
    for size in traced:
        fixed *= 1 if size is None else size
    dynamic = [place for place, size in enumerate(traced) if size is None]
    shape = [1 if size is None else size for size in traced]
    if dynamic:
        shape[dynamic[-1]] = -(-rows // fixed)
    return tuple(shape)


def arrange(region: Region, tokens: torch.Tensor) -> torch.Tensor:
    """1-D `tokens` as ids of `shape_of`, the last one repeated to fill it up."""
    shape = shape_of(region, tokens.numel())
    room = int(torch.Size(shape).numel())
    filled = torch.cat([tokens, tokens[-1:].expand(max(room - tokens.numel(), 0))])
    return filled[:room].reshape(shape)


def chunks(domain: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """`domain` cut into (start, stop) ranges of nearly equal length, so that no short last chunk is computed by
    another kernel than the rest."""
    most = min(max(CHUNK_BYTES // max(row_bytes, 1), SMALLEST_CHUNK), LARGEST_CHUNK)
    parts = -(-domain // most)
    edges = [domain * part // parts for part in range(parts + 1)]
    return zip(edges, edges[1:], strict=False)


def tabulate(region: Region, values: Sequence[Node], progress: Progress = silent) -> list[torch.Tensor]:
    """One table [V, width] for each of `values`, by running the region over its domain in chunks.

    Raises:
        RegionError: the region cannot be run on ids alone.
    """
    run = RegionRunner(region, values)
    device = region.ids.meta["val"].device
    tables = [
        torch.empty((region.domain, region.width(node)), dtype=node.meta["val"].dtype, device=node.meta["val"].device)
        for node in values
    ]
    row_bytes = sum(region.row_bytes(node) for node in values)
    dtype = region.ids.meta["val"].dtype
    for start, stop in chunks(region.domain, row_bytes):
        done = start
        while done < stop:
            tokens = torch.arange(done, stop, device=device, dtype=dtype)
            ids = arrange(region, tokens)
            count = min(ids.numel(), tokens.numel())
            for table, rows in zip(tables, run.rows(ids), strict=True):
                table[done : done + count] = rows[:count]
            done += count
        progress("tabulating", stop, region.domain)
    return tables
