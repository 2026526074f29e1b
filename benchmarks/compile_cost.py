"""What building and checking tables costs beside one bare evaluation: `python benchmarks/compile_cost.py [V] [d]`.

RMSNorm → q(1024), k(256), v(256) in float32 over V ids of width d. Prints seconds and ratios to one bare evaluation of
the region over arange(V) in the chunks the tables are built in, and the peak memory beyond source and tables.
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from machine import describe
from torch import nn

from foldfx.analysis import analyze_consumers, analyze_program, capture
from foldfx.passes.choose import Choice
from foldfx.passes.rewrite import Tables
from foldfx.passes.tables.encode import encode
from foldfx.passes.tables.runner import RegionRunner
from foldfx.passes.tables.tabulate import calls, chunks, silent, tabulate
from foldfx.passes.verification.check_tables import Calls, check_layout, layouts_of
from foldfx.passes.verification.figures import Limits

WIDTHS = (1024, 256, 256)


class Projections(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, out, bias=False) for out in WIDTHS)

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        normed = self.norm(self.embedding(ids))
        return [projection(normed).cumsum(1) for projection in self.projections]


def main(vocabulary: int, width: int) -> None:
    model = Projections(vocabulary, width).eval().requires_grad_(False)
    program = capture(model, (torch.zeros(2, 3, dtype=torch.int64),))
    choice = Choice(program, analyze_program(program), analyze_consumers(program))
    values = choice.frontier()
    region = choice.region_of(values[0])
    run = RegionRunner(region, values)
    source = sum(parameter.nbytes for parameter in model.parameters())
    table_bytes = choice.table_bytes(values)

    def bare() -> None:
        for start, stop in chunks(region.domain, sum(map(region.row_bytes, values))):
            for ids, _ in calls(region, stop - start, start, stop):
                run(ids)

    began = time.perf_counter()
    bare()
    once = time.perf_counter() - began
    began = time.perf_counter()
    built = tabulate(region, values)
    building = time.perf_counter() - began
    began = time.perf_counter()
    encoded = encode(dict(zip(values, built, strict=True)), "tables")
    encoding = time.perf_counter() - began
    holder = nn.Module()
    holder.tables = nn.Module()
    for name, tensor in encoded.state.items():
        holder.tables.register_buffer(name.rpartition(".")[2], tensor)
    tables = Tables(region, tuple(encoded.packs), "embedding")
    checking = {}
    for name, layout in layouts_of(region, run, Limits()).items():
        began = time.perf_counter()
        found = list(check_layout(tables, holder, run, name, layout, Limits(), silent))
        checking[name] = time.perf_counter() - began
        assert not any(beyond for _, beyond in found), found
    bulk = building + encoding + sum(seconds for name, seconds in checking.items() if name != "scalar")
    alone = _bare_calls(layouts_of(region, run, Limits())["scalar"][0](), run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{describe()}; V = {vocabulary:,}, d = {width:,}, widths {WIDTHS}, float32\n")
    print(f"one bare evaluation            {once:8.2f} s")
    print(f"building                       {building:8.2f} s")
    print(f"encoding                       {encoding:8.2f} s")
    for name, seconds in checking.items():
        print(f"checking, {name:20} {seconds:8.2f} s")
    print(f"building and bulk checking     {bulk:8.2f} s = {bulk / once:.2f} × one bare evaluation")
    print(f"V calls of one row             {alone:8.2f} s; checked {checking['scalar'] / alone:.2f} × that")
    beyond = (peak - source - table_bytes) / 2**20
    print(f"peak beyond source and tables  {beyond:8.0f} MiB; a process that only imports has {_import_mib():.0f} MiB")


def _bare_calls(made: Calls, run: RegionRunner) -> float:
    began = time.perf_counter()
    for ids, _ in made:
        run(ids)
    return time.perf_counter() - began


def _import_mib() -> float:
    """Resident memory of a process that has only imported torch and foldfx."""
    import subprocess

    code = "import resource, foldfx; foldfx.compile; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] or ["151936", "1024"])))
