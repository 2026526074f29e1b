"""Every table against its region, for every id of the domain, in five layouts of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

import torch
from torch import nn

from .._torch import static_size
from .compare import Figures, Limits, exceeds, figures_of
from .evidence import LayoutEvidence
from .region import Region, RegionError
from .rewrite import Rewrite
from .runner import RegionRunner
from .tabulate import Progress, arrange, shape_of

CHUNK = 257
"""Rows a bulk check asks for at once: another number than tables are built with."""

Calls = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Calls of one layout: (the ids as called, the tokens they are, one a row)."""


def check_tables(rewrite: Rewrite, module: nn.Module, limits: Limits, progress: Progress) -> tuple[list[LayoutEvidence], list[str]]:
    """Compare each table of `rewrite` in `module` with the region it stands for.

    Returns:
        The evidence, and a sentence for each table and layout beyond the limits.
    """
    region = rewrite.region
    run = RegionRunner(region, [table.value for table in rewrite.tables])
    evidence, failures = [], []
    for layout, (calls, shape, note) in _layouts(region, run, limits).items():
        worst = [Figures() for _ in rewrite.tables]
        tokens = 0
        for ids, asked in calls():
            tokens += asked.numel()
            for place, (table, rows) in enumerate(zip(rewrite.tables, run.rows(ids), strict=True)):
                expected = rows[: asked.numel()]
                stored = attrgetter(table.state)(module)[asked.long()]
                worst[place] = worst[place].worst(figures_of(expected, stored))
            progress(f"checking tables, {layout}", tokens, region.domain)
        for table, figures in zip(rewrite.tables, worst, strict=True):
            evidence.append(LayoutEvidence(table.state, layout, shape, tokens, region.domain, figures, note))
            dtype = table.value.meta["val"].dtype
            if beyond := exceeds(figures, dtype, limits):
                failures.append(f"table {table.state}, layout {layout} {shape}: {beyond}")
    return evidence, failures


def _layouts(region: Region, run: RegionRunner, limits: Limits) -> dict[str, tuple[Callable[[], Calls], str, str]]:
    """Each layout: its calls, the shape of ids it uses, and a note where its own shape is not possible."""
    domain = region.domain
    free = _runs_at_any_rank(region, run, limits)
    traced = f"ids have {region.ids.meta['val'].dim()} dimensions in this program"

    def calls(step: int, place: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Calls]:
        return lambda: _in_steps(region, step, place)

    def in_rank(tokens: torch.Tensor) -> torch.Tensor:
        return arrange(region, tokens)

    def show(rows: int) -> str:
        return str(list(shape_of(region, rows)))

    rows = min(CHUNK, domain)
    square = max(rows // 4, 1)
    chunk = (calls(rows, torch.clone), f"[{rows}]", "") if free else (calls(rows, in_rank), show(rows), traced)
    scalar = (calls(1, lambda t: t.reshape(())), "[]", "") if free else (calls(1, in_rank), show(1), traced)
    if free:
        two = (calls(4 * square, lambda t: t.reshape(4, -1) if t.numel() % 4 == 0 else t.reshape(1, -1)), f"[4, {square}]", "")
    else:
        two = (calls(4 * square, in_rank), show(4 * square), traced)
    strided = (calls(rows, lambda t: _spaced(in_rank(t))), show(rows) + " strided", "")
    layouts = {"1-D chunk": chunk, "scalar": scalar, "2-D": two, "strided": strided}
    if any(static_size(size) is None for size in region.ids.meta["val"].shape):
        layouts["empty"] = (lambda: iter([(_empty(region), torch.arange(0))]), show(0), "")
    return layouts


def _in_steps(region: Region, step: int, place: Callable[[torch.Tensor], torch.Tensor]) -> Calls:
    traced = region.ids.meta["val"]
    start = 0
    while start < region.domain:
        tokens = torch.arange(start, min(start + step, region.domain), dtype=traced.dtype, device=traced.device)
        ids = place(tokens)
        done = min(ids.numel(), tokens.numel())
        yield ids, tokens[:done]
        start += done


def _spaced(ids: torch.Tensor) -> torch.Tensor:
    """The same ids on every other element of memory."""
    if not ids.dim():
        return ids
    wide = torch.stack([ids, ids], dim=-1)
    return wide[..., 0]


def _empty(region: Region) -> torch.Tensor:
    traced = region.ids.meta["val"]
    return torch.empty(shape_of(region, 0), dtype=traced.dtype, device=traced.device)


def _runs_at_any_rank(region: Region, run: RegionRunner, limits: Limits) -> bool:
    """Whether the region's operations, as traced, take ids of any number of dimensions and mean the same."""
    traced = region.ids.meta["val"]
    if not all(map(region.is_trailing, run.wanted)):
        return False
    one = torch.zeros((), dtype=traced.dtype, device=traced.device)
    try:
        alone = run.rows(arrange(region, one.reshape(1)))
        return not any(
            exceeds(figures_of(rows[:1], other[:1]), rows.dtype, limits)
            for shape in ((), (1,), (1, 1))
            for rows, other in zip(alone, run.rows(one.expand(shape)), strict=True)
        )
    except (RegionError, RuntimeError, IndexError, ValueError, TypeError):
        return False
