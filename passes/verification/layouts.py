"""The layouts of ids in which a region is called to check its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..tables.region import Region, RegionError
from ..tables.runner import Ids, RegionRunner
from ..tables.tabulate import (
    Call,
    Place,
    arrange,
    built_calls,
    calls_of,
    chunks,
    fitting,
    has_dynamic_axis,
    shapes_of,
    tokens_of,
    traced_place,
)
from .figures import Limits, exceeds, figures_of
from .layout import Layout
from .row_counts import counts_layout

CHUNK, LARGE_CHUNK = 257, 1031
"""Rows a bulk check asks for at once, in small and in large domains: other numbers than tables are built with."""

FULL = 4096
"""Largest domain that is checked whole in every layout; a larger one has 2-D and strided calls on a slice of it."""


def layouts_of(region: Region, run: RegionRunner) -> list[Layout]:
    """The layouts a region can be called in: bulk ones, one row at a time, other numbers of rows, then none."""
    free = runs_at_any_rank(region, run)
    ranks = ", ".join(str(node.meta["val"].dim()) for node in region.inputs)
    note = f"ids have {ranks} dimension(s) in this program"
    large = region.domain > FULL
    everyone = torch.arange(region.domain)
    some = everyone[:FULL]
    step = min(LARGE_CHUNK if large else CHUNK, region.domain)
    square = max(step // 4, 1)

    def traced(name: str, step: int, rows: torch.Tensor = everyone) -> Layout:
        return Layout(name, _show(region, step), rows, lambda rows: calls_of(region, rows, step), note)

    def own(
        name: str, step: int, place: Callable[[torch.Tensor], torch.Tensor], shape: str, rows: torch.Tensor = everyone
    ) -> Layout:
        return Layout(name, shape, rows, lambda rows: calls_of(region, rows, step, _each(place)))

    layouts = [as_built_layout(region, run)]
    if large:
        order = torch.randperm(region.domain, generator=torch.Generator().manual_seed(0))
        layouts.append(replace(traced("permuted", step, order), note="in random order"))
    elif layouts[0].shape != _show(region, step):
        layouts.append(own("1-D chunk", step, torch.clone, f"[{step}]") if free else traced("1-D chunk", step))
    layouts += [
        own("2-D", 4 * square, _in_four, f"[4, {square}]", some) if free else traced("2-D", 4 * square, some),
        Layout(
            "strided",
            f"{_show(region, step)} strided",
            some,
            lambda rows: calls_of(region, rows, fitting(region, step), _strided(region)),
        ),
        replace(own("scalar", 1, lambda ids: ids.reshape(()), "[]") if free else traced("scalar", 1), single=True),
    ]
    if has_dynamic_axis(region):
        layouts.append(counts_layout(region))
        layouts.append(Layout("empty", _show(region, 0), everyone[:0], lambda rows: iter([Call(_empty(region), rows)])))
    return layouts


def as_built_layout(region: Region, run: RegionRunner) -> Layout:
    """The very calls the bulk tables are built with."""
    start, stop = next(iter(chunks(region.domain, sum(map(region.row_bytes, run.wanted)))))
    shape = _show(region, stop - start)
    return Layout("as built", shape, torch.arange(region.domain), lambda _: built_calls(region, run.wanted), as_built=True)


def _each(place: Callable[[torch.Tensor], torch.Tensor]) -> Place:
    return lambda tokens: {name: place(each) for name, each in tokens.items()}


def _show(region: Region, rows: int) -> str:
    return " ".join(str(list(shape)) for shape in shapes_of(region, rows).values())


def _in_four(ids: torch.Tensor) -> torch.Tensor:
    return ids.reshape(4, -1) if ids.numel() % 4 == 0 else ids.reshape(1, -1)


def _strided(region: Region) -> Place:
    """The traced layout on every other element of memory."""
    traced = traced_place(region)

    def place(tokens: dict[str, torch.Tensor]) -> Ids:
        return {name: torch.stack([ids, ids], dim=-1)[..., 0] if ids.dim() else ids for name, ids in traced(tokens).items()}

    return place


def _empty(region: Region) -> Ids:
    tokens = {n.name: torch.empty(0, dtype=n.meta["val"].dtype, device=n.meta["val"].device) for n in region.inputs}
    return arrange(tokens, shapes_of(region, 0))


def runs_at_any_rank(region: Region, run: RegionRunner) -> bool:
    """Whether the region's operations, as traced, take ids of any number of dimensions and mean the same."""
    if len(region.inputs) > 1 or not all(map(region.is_trailing, run.wanted)):
        return False
    rows = torch.arange(min(2, region.domain))
    tokens = tokens_of(region, rows)[region.inputs[0].name]
    try:
        parts = [[call.answers(found) for found in run.rows(call.ids)] for call in calls_of(region, rows, 2)]
        expected = [torch.cat(each) for each in zip(*parts, strict=True)]
        trials = [tokens[0], tokens, tokens.reshape(1, -1), tokens.reshape(-1, 1)]
        return not any(
            exceeds(figures_of(rows[: trial.numel()], found), rows.dtype, Limits())
            for trial in trials
            for rows, found in zip(expected, run.rows({region.inputs[0].name: trial}), strict=True)
        )
    except RegionError:
        return False
