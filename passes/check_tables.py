"""Every table against its region, for every row of the domain, in five layouts of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from .compare import Figures, Limits, exceeds, figures_of
from .evidence import LayoutEvidence
from .region import Region, RegionError
from .rewrite import Rewrite, Tables
from .runner import Ids, RegionRunner
from .tabulate import Progress, arrange, calls, has_dynamic_axis, shapes_of

CHUNK = 257
"""Rows a bulk check asks for at once: another number than tables are built with."""

Calls = Iterator[tuple[Ids, torch.Tensor]]
Layout = tuple[Callable[[], Calls], str, str]
"""The calls (ids, row numbers they answer), the shape of ids they use, and a note where the layout's own is not possible."""


def check_tables(
    rewrite: Rewrite, module: nn.Module, limits: Limits, progress: Progress
) -> tuple[list[LayoutEvidence], list[str]]:
    """Compare each table of `rewrite` in `module` with the region it stands for.

    Returns:
        The evidence, and a sentence for each table and layout beyond the limits.
    """
    evidence: list[LayoutEvidence] = []
    failures: list[str] = []
    for tables in rewrite.tables:
        run = RegionRunner(tables.region, tables.values)
        for name, layout in _layouts(tables.region, run, limits).items():
            try:
                for found, beyond in _check_layout(tables, module, run, name, layout, limits, progress):
                    evidence.append(found)
                    failures += [f"table of {found.table}, layout {name} {found.shape}: {beyond}"] if beyond else []
            except RegionError as error:
                if name == "empty":
                    evidence += [
                        LayoutEvidence(v.name, name, layout[1], 0, tables.region.domain, Figures(), str(error))
                        for v in tables.values
                    ]
                    continue
                failures.append(f"tables of {tables.region.name}, layout {name} {layout[1]}: {error}")
    return evidence, failures


def _check_layout(
    tables: Tables, module: nn.Module, run: RegionRunner, name: str, layout: Layout, limits: Limits, progress: Progress
) -> Iterator[tuple[LayoutEvidence, str]]:
    make, shape, note = layout
    worst = {node: Figures() for node in tables.values}
    seen = 0
    for ids, rows in make():
        seen += rows.numel()
        stored = {node: part for pack in tables.packs for node, part in pack.decode(module, rows).items()}
        for node, expected in zip(tables.values, run.rows(ids), strict=True):
            worst[node] = worst[node].worst(figures_of(expected[: rows.numel()], stored[node]))
        progress(f"checking tables, {name}", seen, tables.region.domain)
    for node, figures in worst.items():
        found = LayoutEvidence(node.name, name, shape, seen, tables.region.domain, figures, note)
        yield found, exceeds(figures, node.meta["val"].dtype, limits)


def _layouts(region: Region, run: RegionRunner, limits: Limits) -> dict[str, Layout]:
    domain = region.domain
    free = _runs_at_any_rank(region, run, limits)
    ranks = ", ".join(str(node.meta["val"].dim()) for node in region.inputs)
    note = f"ids have {ranks} dimension(s) in this program"
    rows = min(CHUNK, domain)
    square = max(rows // 4, 1)

    def reshaped(shape: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Region, dict[str, torch.Tensor]], Ids]:
        return lambda _, tokens: {name: shape(each) for name, each in tokens.items()}

    def traced(step: int) -> Layout:
        return (lambda: calls(region, step)), _show(region, step), note

    def own(step: int, shape: Callable[[torch.Tensor], torch.Tensor], text: str) -> Layout:
        return (lambda: calls(region, step, place=reshaped(shape))), text, ""

    def spaced() -> Calls:
        return calls(region, rows, place=lambda r, t: {n: _spaced(i) for n, i in arrange(r, t).items()})

    layouts: dict[str, Layout] = {
        "1-D chunk": own(rows, torch.clone, f"[{rows}]") if free else traced(rows),
        "scalar": own(1, lambda ids: ids.reshape(()), "[]") if free else traced(1),
        "2-D": own(4 * square, _in_four, f"[4, {square}]") if free else traced(4 * square),
        "strided": (spaced, f"{_show(region, rows)} strided", ""),
    }
    if has_dynamic_axis(region):
        layouts["empty"] = ((lambda: iter([(_empty(region), torch.arange(0))])), _show(region, 0), "")
    return layouts


def _show(region: Region, rows: int) -> str:
    return " ".join(str(list(shape)) for shape in shapes_of(region, rows).values())


def _in_four(ids: torch.Tensor) -> torch.Tensor:
    return ids.reshape(4, -1) if ids.numel() % 4 == 0 else ids.reshape(1, -1)


def _spaced(ids: torch.Tensor) -> torch.Tensor:
    """The same ids on every other element of memory."""
    return torch.stack([ids, ids], dim=-1)[..., 0] if ids.dim() else ids


def _empty(region: Region) -> Ids:
    shapes = shapes_of(region, 0)
    return {
        node.name: torch.empty(shapes[node.name], dtype=node.meta["val"].dtype, device=node.meta["val"].device)
        for node in region.inputs
    }


def _runs_at_any_rank(region: Region, run: RegionRunner, limits: Limits) -> bool:
    """Whether the region's operations, as traced, take ids of any number of dimensions and mean the same."""
    if len(region.inputs) > 1 or not all(map(region.is_trailing, run.wanted)):
        return False
    try:
        (traced, numbers) = next(calls(region, min(2, region.domain)))
        tokens = next(iter(traced.values())).reshape(-1)[: numbers.numel()]
        expected = run.rows(traced)
        trials = [tokens[0], tokens, tokens.reshape(1, -1), tokens.reshape(-1, 1)]
        return not any(
            exceeds(figures_of(rows[: trial.numel()], found), rows.dtype, limits)
            for trial in trials
            for rows, found in zip(expected, run.rows({region.inputs[0].name: trial}), strict=True)
        )
    except RegionError:
        return False
