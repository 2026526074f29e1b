"""What only a GPU can show: parity of the TR-Hash layer and its CUDA graphs, folded models on the device, and their times.

    python benchmarks/gpu/check.py            # on a CUDA device, under two minutes
    python benchmarks/gpu/check.py --device cpu   # the same without CUDA graphs, to try the script

Prints a line for each check with max-abs and relative L2 against float64 on the CPU, then median times of interleaved
calls; ends with status 1 if a check failed.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from statistics import median

import torch

import foldfx
from foldfx.runtime.tr_hash import TRHashEngine, TRHashEngineConfig
from foldfx.runtime.tr_hash.buckets import GraphBucket

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Relative L2; products in float32 run without TF32 here."""

ROUNDS = 30


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}")
    torch.manual_seed(0)
    failed = [*layer_parity(device), *(graph_parity(device) if device.type == "cuda" else []), *fold(device)]
    print(f"FAILED: {', '.join(failed)}" if failed else "all checks passed")
    return int(bool(failed))


def layer(**options: object) -> TRHashEngine:
    """The released shape, with seeded weights, on the CPU in float32."""
    sizes = {"hidden_size": 896, "vocab_size": 32_000, "shared_width": 3072, "expert_width": 64, "routed_output_scale": 2.0}
    return TRHashEngine(TRHashEngineConfig(**sizes, **options)).eval().requires_grad_(False)  # type: ignore[arg-type]


def layer_parity(device: torch.device) -> list[str]:
    """Each dtype on the device against float64 on the CPU."""
    engine, ids = layer(), torch.randint(32_000, (4, 128))
    hidden = torch.randn(4, 128, 896)
    exact = layer()
    exact.load_state_dict(engine.state_dict())
    expected = exact.double()(hidden.double(), ids)
    failed = []
    for dtype, limit in LIMITS.items():
        moved = layer()
        moved.load_state_dict(engine.state_dict())
        moved = moved.to(device, dtype)
        found = moved(hidden.to(device, dtype), ids.to(device))
        label = f"TR-Hash layer {dtype}"
        backend = moved.last_backend
        print(f"{label} on {backend.selected if backend else '?'}, {backend.lowering if backend else '?'}")
        failed += compared(label, expected, found, limit)
    return failed


def graph_parity(device: torch.device) -> list[str]:
    """Captured and replayed for whole and for padded calls, against the same layer without graphs, and both timed."""
    plain = layer().to(device)
    graphed = layer(backend="cuda_graph", graph_buckets=(GraphBucket(2, 64), GraphBucket(8, 128)), phase="inference").to(device)
    graphed.load_state_dict(plain.state_dict())
    failed = []
    with torch.no_grad():
        for shape in ((2, 64), (1, 17), (8, 100)):
            hidden, ids = torch.randn(*shape, 896, device=device), torch.randint(32_000, shape, device=device)
            failed += compared(f"CUDA graph for {shape}", plain(hidden, ids).double().cpu(), graphed(hidden, ids), 1e-6)
        hidden, ids = torch.randn(2, 64, 896, device=device), torch.randint(32_000, (2, 64), device=device)
        side_by_side(device, "TR-Hash layer, 2×64", lambda: plain(hidden, ids), "CUDA graph", lambda: graphed(hidden, ids))
    return failed


class Tagger(torch.nn.Module):
    """A model of which the first half folds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 1024)
        self.up, self.head = torch.nn.Linear(1024, 512), torch.nn.Linear(512, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.up(self.embedding(ids))).cumsum(1))
        return result


def fold(device: torch.device) -> list[str]:
    """A fold built, verified and run on the device."""
    model = Tagger().eval().requires_grad_(False).to(device)
    ids = torch.randint(256, (8, 64), device=device)
    result = foldfx.compile(model, [foldfx.Example((ids,))])
    print(f"fold: {result.status}; {'; '.join(claim['kernel'] for claim in result.report.to_dict()['kernels'])}")
    side_by_side(device, "model, 8×64", lambda: model(ids), "folded", lambda: result.module(ids))
    exact = Tagger().eval().double()
    exact.load_state_dict(model.state_dict())
    failed = compared("folded model", exact(ids.cpu()), result.module(ids), 1e-5)
    return failed if result.accepted else ["fold"]


def compared(label: str, expected: torch.Tensor, found: torch.Tensor, limit: float) -> list[str]:
    """Prints the distance; the label where it is beyond the limit."""
    apart = found.double().cpu() - expected
    relative = float(apart.norm() / expected.norm())
    ok = relative <= limit
    figures = f"max-abs {float(apart.abs().max()):.2e}, relative L2 {relative:.2e}, limit {limit:.0e}"
    print(f"  {'ok' if ok else 'WRONG'} {label}: {figures}")
    return [] if ok else [label]


def side_by_side(device: torch.device, one: str, first: object, other: str, second: object) -> None:
    """Medians of interleaved calls, each waited for."""
    times: dict[str, list[float]] = {one: [], other: []}
    for _ in range(ROUNDS):
        for name, call in ((one, first), (other, second)):
            began = time.perf_counter()
            call()  # type: ignore[operator]
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(time.perf_counter() - began)
    before, after = (1e6 * median(times[name]) for name in (one, other))
    print(f"  {one}: {before:.1f} µs, {other}: {after:.1f} µs, {before / after:.2f}×")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    sys.exit(main())
