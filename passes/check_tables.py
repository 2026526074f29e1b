"""Every table against its region, for every row of the domain, in five layouts of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from .compare import Figures, Limits, exceeds, figures_of, figures_of_rows
from .evidence import LayoutEvidence
from .region import Region, RegionError
from .rewrite import Rewrite, Tables
from .runner import Ids, RegionRunner
from .tabulate import LARGEST_CHUNK, Progress, arrange, calls, has_dynamic_axis, shapes_of, tokens_of

CHUNK, LARGE_CHUNK = 257, 1031
"""Rows a bulk check asks for at once, in small and in large domains: other numbers than tables are built with."""

BLOCK = 1024
"""Rows compared at once."""

FULL = 4096
"""Largest domain that is checked whole in every layout; a larger one has 2-D and strided calls on a slice of it."""

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
        for name, layout in layouts_of(tables.region, run, limits).items():
            try:
                for found, beyond in check_layout(tables, module, run, name, layout, limits, progress):
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


def check_layout(
    tables: Tables, module: nn.Module, run: RegionRunner, name: str, layout: Layout, limits: Limits, progress: Progress
) -> Iterator[tuple[LayoutEvidence, str]]:
    """The evidence for each table in one layout, and what of it is beyond the limits ("" if nothing)."""
    make, shape, note = layout
    worst = {node: Figures() for node in tables.values}
    seen = 0
    for rows, computed in _blocks(make(), run):
        seen += rows.numel()
        stored = {node: part for pack in tables.packs for node, part in pack.decode(module, rows).items()}
        for node, expected in zip(tables.values, computed, strict=True):
            worst[node] = worst[node].worst(figures_of_rows(expected, stored[node]))
        progress(f"checking tables, {name}", seen, tables.region.domain)
    for node, figures in worst.items():
        found = LayoutEvidence(node.name, name, shape, seen, tables.region.domain, figures, note)
        yield found, exceeds(figures, node.meta["val"].dtype, limits)


def _blocks(made: Calls, run: RegionRunner) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Row numbers and computed rows of many calls at a time: comparing is then cheap beside calling."""
    numbers: list[torch.Tensor] = []
    computed: list[list[torch.Tensor]] = []
    for ids, rows in made:
        numbers.append(rows)
        computed.append([found[: rows.numel()] for found in run.rows(ids)])
        if sum(map(len, numbers)) >= BLOCK:
            yield torch.cat(numbers), [torch.cat(parts) for parts in zip(*computed, strict=True)]
            numbers, computed = [], []
    if numbers:
        yield torch.cat(numbers), [torch.cat(parts) for parts in zip(*computed, strict=True)]


def layouts_of(region: Region, run: RegionRunner, limits: Limits) -> dict[str, Layout]:
    """The layouts a region can be called in, by name."""
    free = _runs_at_any_rank(region, run, limits)
    ranks = ", ".join(str(node.meta["val"].dim()) for node in region.inputs)
    note = f"ids have {ranks} dimension(s) in this program"
    rows = min(CHUNK if region.domain <= FULL else LARGE_CHUNK, region.domain)
    square = max(rows // 4, 1)
    some = min(region.domain, FULL)

    def traced(step: int, stop: int | None = None) -> Layout:
        return (lambda: calls(region, step, stop=stop)), _show(region, step), note

    def own(step: int, shape: Callable[[torch.Tensor], torch.Tensor], text: str, stop: int | None = None) -> Layout:
        def place(_: Region, tokens: dict[str, torch.Tensor]) -> Ids:
            return {name: shape(each) for name, each in tokens.items()}

        return (lambda: calls(region, step, stop=stop, place=place)), text, ""

    def spaced(_: Region, tokens: dict[str, torch.Tensor]) -> Ids:
        return {name: _spaced(each) for name, each in arrange(region, tokens).items()}

    layouts: dict[str, Layout] = {
        "1-D chunk": own(rows, torch.clone, f"[{rows}]") if free else traced(rows),
        "scalar": own(1, lambda ids: ids.reshape(()), "[]") if free else traced(1),
        "2-D": own(4 * square, _in_four, f"[4, {square}]", some) if free else traced(4 * square, some),
        "strided": ((lambda: calls(region, rows, stop=some, place=spaced)), f"{_show(region, rows)} strided", ""),
    }
    if region.domain > some:
        layouts["permuted"] = ((lambda: _permuted(region)), _show(region, LARGEST_CHUNK), "in random order")
    if has_dynamic_axis(region):
        layouts["empty"] = ((lambda: iter([(_empty(region), torch.arange(0))])), _show(region, 0), "")
    return layouts


def _permuted(region: Region) -> Calls:
    """The whole domain in one fixed random order."""
    order = torch.randperm(region.domain, generator=torch.Generator().manual_seed(0))
    start = 0
    while start < region.domain:
        rows = order[start : start + LARGEST_CHUNK]
        ids = arrange(region, tokens_of(region, rows))
        room = next(iter(ids.values())).numel()
        yield ids, rows[:room]
        start += min(room, rows.numel())


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
