"""What only a GPU can show: parity of the TR-Hash layer and its CUDA graphs, folded models on the device, and their times.

    python benchmarks/gpu/check.py            # on a CUDA device, under two minutes
    python benchmarks/gpu/check.py --device cpu   # the same without CUDA graphs, to try the script

Prints a line for each check with max-abs and relative L2 against float64 on the CPU, then median times of interleaved
calls; ends with status 1 if a check failed. Products in float32 run without TF32. Streams, threads and shared
memory are in `tests/runtime/tr_hash/test_graphs_on_a_gpu.py`.
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

import foldfx
from foldfx.runtime.tr_hash import GraphBucket, TRHashEngine, TRHashEngineConfig

LIMITS = {torch.float32: (5e-6, 2e-6), torch.bfloat16: (6e-2, 1e-2), torch.float16: (8e-3, 1.5e-3)}
"""Largest absolute difference for values up to 1, and relative L2, to float64 with the same weights. In float32 the sums of
this shape, taken term by term, are off by 1.3e-6."""

FOLD_LIMITS = (1e-5, 1e-5)
"""The same for the folded model: what foldfx asks of a fold."""

HIDDEN, VOCABULARY = 896, 32_000
BUCKETS = (GraphBucket(2, 64), GraphBucket(8, 128))
ROUNDS = 30

Call = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; take --device cpu to try the script")
    began = time.perf_counter()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    print(machine(device))
    print(f"float32 products: {torch.backends.cuda.matmul.fp32_precision}")
    with torch.no_grad():
        failed = [*layer_parity(device), *(graph_parity(device) if device.type == "cuda" else []), *fold(device)]
    print(f"{time.perf_counter() - began:.0f} s")
    print(f"FAILED: {', '.join(failed)}" if failed else "all checks passed")
    return int(bool(failed))


def machine(device: torch.device) -> str:
    """Device and versions."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    if device.type != "cuda":
        return f"{platform.processor() or 'CPU'}, {versions}"
    found = torch.cuda.get_device_properties(device)
    name = f"{found.name} (sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB)"
    return f"{name}, CUDA {torch.version.cuda}, {versions}"


def layer(**options: object) -> TRHashEngine:
    """The released shape in float32, on the CPU, with weights of its own."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "shared_width": 3072, "expert_width": 64}
    settings = {"routed_output_scale": 2.0, "precision": "fp32"}
    config = TRHashEngineConfig(**sizes | settings | options)  # type: ignore[arg-type]
    return TRHashEngine(config).eval().requires_grad_(False)


def call(device: torch.device, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Hidden states and ids."""
    return torch.randn(batch, length, HIDDEN).to(device), torch.randint(VOCABULARY, (batch, length)).to(device)


def exactly(engine: TRHashEngine, hidden: Tensor, ids: Tensor) -> Tensor:
    """The same weights and inputs, in float64 on the CPU."""
    exact = layer().double()
    exact.load_state_dict(engine.state_dict())
    result: Tensor = exact(hidden.cpu().double(), ids.cpu())
    return result


def layer_parity(device: torch.device) -> list[str]:
    """Each dtype on the device."""
    engine, (hidden, ids) = layer(), call(device, 4, 128)
    failed = []
    for dtype, limits in LIMITS.items():
        moved = copy.deepcopy(engine).to(device, dtype)
        rounded = hidden.to(dtype)
        label = f"TR-Hash layer {dtype}"
        failed += compared(label, exactly(moved, rounded, ids), moved(rounded, ids), *limits)
        backend = moved.last_backend
        print(f"    {backend.selected if backend else '?'}, {backend.lowering if backend else '?'}")
    return failed


def graph_parity(device: torch.device) -> list[str]:
    """Replays for whole and for padded calls: near float64, and to the bit what the layer computes of the padded call.

    Both read the same weights, and cuBLAS takes the same kernels for the same sizes.
    """
    graphed = layer(backend="cuda_graph", graph_buckets=BUCKETS, phase="inference").to(device)
    plain = layer().to(device)
    plain.load_state_dict(graphed.state_dict(), assign=True)
    failed = []
    for (batch, length), bucket in (((2, 64), BUCKETS[0]), ((1, 17), BUCKETS[0]), ((8, 100), BUCKETS[1])):
        hidden, ids = call(device, batch, length)
        padded = hidden.new_zeros(bucket.batch_size, bucket.sequence_length, HIDDEN)
        padded_ids = ids.new_zeros(bucket.batch_size, bucket.sequence_length)
        padded[:batch, :length], padded_ids[:batch, :length] = hidden, ids
        found, label = graphed(hidden, ids), f"CUDA graph for {(batch, length)}"
        failed += compared(label, exactly(plain, hidden, ids), found, *LIMITS[torch.float32])
        failed += same(label, plain(padded, padded_ids)[:batch, :length], found)
        with torch.autocast("cuda", torch.bfloat16):
            expected = plain(padded, padded_ids)[:batch, :length]
            failed += same(f"{label} under autocast", expected, graphed(hidden, ids))
    hidden, ids = call(device, 2, 64)
    side_by_side(device, "TR-Hash layer, 2×64", lambda: plain(hidden, ids), "CUDA graph", lambda: graphed(hidden, ids))
    return failed


class Tagger(torch.nn.Module):
    """A model of which the first half folds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 1024)
        self.up, self.head = torch.nn.Linear(1024, 512), torch.nn.Linear(512, 16)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(torch.relu(self.up(self.embedding(ids))).cumsum(1))
        return result


def fold(device: torch.device) -> list[str]:
    """A fold run on the device.

    It is built and verified on the CPU: the verifier has not been run on a CUDA device yet.
    """
    model, ids = Tagger().eval().requires_grad_(False), torch.randint(256, (8, 64))
    expected = copy.deepcopy(model).double()(ids)
    result = foldfx.compile(model, [foldfx.Example((ids,))])
    print(f"fold: {result.status}; {'; '.join(claim['kernel'] for claim in result.report.to_dict()['kernels'])}")
    if not result.accepted:
        return ["fold"]
    model, folded, ids = model.to(device), result.module.to(device), ids.to(device)
    failed = compared("folded model", expected, folded(ids), *FOLD_LIMITS)
    side_by_side(device, "model, 8×64", lambda: model(ids), "folded", lambda: folded(ids))
    return failed


def compared(label: str, expected: Tensor, found: Tensor, most: float, relative: float) -> list[str]:
    """Prints the distance to float64; the label where it is beyond a limit."""
    apart = found.cpu().double() - expected
    largest, off = float(apart.abs().max()), float(apart.norm() / expected.norm())
    most *= max(1.0, float(expected.abs().max()))
    ok = largest <= most and off <= relative
    print(f"  {mark(ok)} {label}: max-abs {largest:.2e} (limit {most:.1e}), relative L2 {off:.2e} (limit {relative:.1e})")
    return [] if ok else [label]


def same(label: str, expected: Tensor, found: Tensor) -> list[str]:
    """Prints how many values differ; the label where one does."""
    differ = int((expected != found).sum())
    print(f"  {mark(not differ)} {label}: {differ:,} of {found.numel():,} values other than without a graph")
    return [f"{label}, to the bit"] if differ else []


def mark(ok: bool) -> str:
    return "ok" if ok else "WRONG"


def side_by_side(device: torch.device, one: str, first: Call, other: str, second: Call) -> None:
    """Medians of interleaved calls, each waited for."""
    times: dict[str, list[float]] = {one: [], other: []}
    for _ in range(ROUNDS):
        for name, measured in ((one, first), (other, second)):
            began = time.perf_counter()
            measured()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(time.perf_counter() - began)
    before, after = (1e6 * median(times[name]) for name in (one, other))
    print(f"  {one}: {before:.1f} µs, {other}: {after:.1f} µs, {before / after:.2f}×")


if __name__ == "__main__":
    sys.exit(main())
