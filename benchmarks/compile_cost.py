"""What building and checking tables costs beside bare evaluations: `python benchmarks/compile_cost.py [V] [d]`.

RMSNorm → q(1024), k(256), v(256) in float32 over V ids of width d. Prints seconds and ratios to one bare evaluation, the
module itself called on arange(V) in the chunks the tables are built in, or to V bare calls of one row; and the peak memory
beyond the import, the source and the tables. Bare evaluations run before, between and after what they are compared with.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from machine import describe
from torch import nn

from foldfx.analysis import Program, analyze_consumers, analyze_program, capture
from foldfx.lowering import PROVIDERS, lower
from foldfx.passes import FoldTokens, Pipeline
from foldfx.passes.choose import Choice
from foldfx.passes.rewrite import Tables
from foldfx.passes.tables.encode import encode
from foldfx.passes.tables.tabulate import chunks, silent, tabulate
from foldfx.passes.verification.check_tables import TableCheck
from foldfx.passes.verification.figures import Limits
from foldfx.passes.verification.layouts import as_built_layout, layouts_of
from foldfx.passes.verification.lookups import Lookups

WIDTHS = (1024, 256, 256)
SINGLES = 20_000
"""Calls of one row that are timed bare, at most."""


class Region(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, out, bias=False) for out in WIDTHS)

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        normed = self.norm(self.embedding(ids))
        return [projection(normed) for projection in self.projections]


class Sums(nn.Module):
    """Keeps the projections inside: sums over positions follow."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return [value.cumsum(1) for value in self.region(ids)]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak() -> int:
    """Bytes of memory this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(vocabulary: int, width: int) -> None:
    region = Region(vocabulary, width).eval().requires_grad_(False)
    source = sum(parameter.nbytes for parameter in region.parameters())
    program = capture(Sums(region).eval(), (torch.zeros(2, 3, dtype=torch.int64),))
    choice = Choice(program, analyze_program(program), analyze_consumers(program))
    imported = peak() - source
    values = choice.frontier()
    table_bytes = choice.table_bytes(values)
    row_bytes = sum(map(choice.region_of(values[0]).row_bytes, values))

    @torch.no_grad()
    def bare() -> None:
        for start, stop in chunks(vocabulary, row_bytes):
            region(torch.arange(start, stop).reshape(1, -1))

    @torch.no_grad()
    def singles() -> None:
        for token in torch.arange(min(vocabulary, SINGLES)).unbind():
            region(token)

    evaluations, calls = [seconds(bare)], [seconds(singles)]
    tables, module, building, encoding = build(program, choice)
    evaluations.append(seconds(bare))
    check = TableCheck(tables, module, Limits(), silent)
    checking = {}
    for layout in layouts_of(tables.region, check.run):
        checking[layout.name] = seconds(lambda layout=layout: verified(check, layout))
        evaluations.append(seconds(bare))
        if layout.name == "scalar":
            calls.append(seconds(singles))
    beyond = (peak() - imported - source - table_bytes) / 2**20
    checking["in the graph"] = looked_up(program, table_bytes)
    once, alone = median(evaluations), median(calls) * vocabulary / min(vocabulary, SINGLES)
    bulk = building + encoding + sum(spent for name, spent in checking.items() if name != "scalar")
    print(f"{describe()}; V = {vocabulary:,}, d = {width:,}, widths {WIDTHS}, float32\n")
    print(f"one bare evaluation            {once:8.2f} s (median of {len(evaluations)})")
    print(f"building                       {building:8.2f} s")
    print(f"encoding                       {encoding:8.2f} s")
    for name, spent in checking.items():
        print(f"checking, {name:20} {spent:8.2f} s")
    print(f"building and bulk checking     {bulk:8.2f} s = {bulk / once:.2f} × one bare evaluation")
    print(f"V bare calls of one row        {alone:8.2f} s; checked in {checking['scalar'] / alone:.2f} × that")
    print(f"peak beyond import, source and tables {beyond:.0f} MiB")


def build(program: Program, choice: Choice) -> tuple[Tables, nn.Module, float, float]:
    """The tables of the frontier, the module that holds them, and the seconds for building and for encoding."""
    values = choice.frontier()
    region = choice.region_of(values[0])
    began = time.perf_counter()
    built = tabulate(region, values)
    building = time.perf_counter() - began
    encoded = encode(dict(zip(values, built, strict=True)), "tables")
    encoding = time.perf_counter() - began - building
    module = nn.Module()
    module.tables = nn.Module()
    for name, tensor in encoded.state.items():
        module.tables.register_buffer(name.rpartition(".")[2], tensor)
    return Tables(region, tuple(encoded.packs), "embedding"), module, building, encoding


def looked_up(program: Program, budget: int) -> float:
    """Seconds for comparing what the folded graph looks up with what its tables hold."""
    rewritten, _, (rewrite,) = Pipeline([FoldTokens(max_table_bytes=budget)]).rewrite(program)
    candidate = rewritten.copy()
    lower(candidate.module, PROVIDERS)
    (tables,) = rewrite.tables
    check = TableCheck(tables, candidate.module, Limits(), silent)
    lookups = Lookups(candidate, tables.region, tables.values, check.run)
    return seconds(lambda: check.looked_up(as_built_layout(tables.region, check.run), lookups))


def verified(check: TableCheck, layout: object) -> None:
    _, wrong = check(layout)  # type: ignore[arg-type]
    assert not wrong, wrong


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] or ["151936", "1024"])))
