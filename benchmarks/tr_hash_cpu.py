"""A TR-Hash layer of the released shape beside a dense SwiGLU of its active width: `python benchmarks/tr_hash_cpu.py`.

H 896, shared 3,072, four experts of 64, top-2, float32, one thread. Both layers are called in turn in one process.
Processor time is counted, so that waiting for other processes is not; ratios are of medians, and of each call and the
dense one before it. The allocator keeps large blocks for both sides (glibc would hand each output out by mmap, and page
faults would be timed). `--lowerings` and `--layouts` measure the thresholds of `runtime/tr_hash/choice.py` instead.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter, process_time

import torch
from machine import describe
from torch import Tensor, nn
from torch.nn import functional

from foldfx.runtime.tr_hash import TR_HASH_MLP, TRHashEngine, TRHashEngineConfig
from foldfx.runtime.tr_hash.choice import LOWERINGS, choose, tokens_as_columns
from foldfx.runtime.tr_hash.swiglu import shared_by_columns, shared_forward

HIDDEN, VOCABULARY = 896, 32_000
CALLS = ((2, 128, 1.06), (8, 512, 1.06), (32, 1, 1.10))
SECONDS_A_SHAPE = float(os.environ.get("FOLDFX_BENCHMARK_SECONDS", "20"))
SECONDS_A_LAYOUT = SECONDS_A_SHAPE / 10
MOST_SAVED = 1.05
SHAPES = ((4, 64, 2), (8, 64, 2), (16, 64, 1), (16, 64, 4), (4, 512, 2), (16, 256, 2))
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


class Dense(nn.Module):
    """A SwiGLU of three linear layers without bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(HIDDEN, width, bias=False), nn.Linear(HIDDEN, width, bias=False)
        self.down = nn.Linear(width, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] → [..., H]."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def engine(experts: int, width: int, top_k: int, shared: int) -> TRHashEngine:
    """A float32 layer of the multi-hash strategy."""
    return TRHashEngine(
        TRHashEngineConfig(
            HIDDEN,
            VOCABULARY,
            experts,
            top_k,
            shared,
            width,
            routing_strategy="token_id_multi_hash",
            routed_output_scale=2.0,
            precision="fp32",
        )
    )


def interleaved(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Processor seconds of each call, the calls taking turns."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = perf_counter() + seconds
    while perf_counter() < end or len(next(iter(times.values()))) < 7:
        for name, call in calls.items():
            start = process_time()
            call()
            times[name].append(process_time() - start)
    return times


def saved_bytes(call: Callable[[], Tensor], parameters: Iterator[Tensor]) -> int:
    """Bytes kept for the backward, each storage once, parameters left out."""
    own = {each.untyped_storage().data_ptr() for each in parameters}
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = call()
    assert output.requires_grad
    return sum(held.values())


def compare() -> None:
    """The engine beside the dense layer."""
    layer = engine(4, 64, 2, 3072)
    dense = Dense(layer.config.active_mlp_width)
    print(
        "| call | B×S | dense 3,200 | engine | ratio of medians | median of paired ratios | limit | lowering |\n"
        + "|---" * 8
        + "|"
    )
    for batch, length, limit in CALLS:
        hidden, ids = torch.randn(batch, length, HIDDEN), torch.randint(VOCABULARY, (batch, length))
        with torch.no_grad():
            row("forward", (batch, length), f"{limit:.2f}", layer, dense, hidden, ids)
    for batch, length, _ in CALLS[:1]:
        hidden, ids = torch.randn(batch, length, HIDDEN, requires_grad=True), torch.randint(VOCABULARY, (batch, length))
        row("forward + backward", (batch, length), "", layer, dense, hidden, ids)
    hidden, ids = torch.randn(8, 512, HIDDEN, requires_grad=True), torch.randint(VOCABULARY, (8, 512))
    kept = [saved_bytes(lambda: layer(hidden, ids), layer.parameters()), saved_bytes(lambda: dense(hidden), dense.parameters())]
    mebibytes = [each / 2**20 for each in kept]
    print(
        f"\nSaved for the backward at 8×512: engine {mebibytes[0]:.1f} MiB, dense {mebibytes[1]:.1f} MiB, "
        f"ratio {kept[0] / kept[1]:.3f}, limit {MOST_SAVED}"
    )


def row(name: str, shape: tuple[int, int], limit: str, layer: TRHashEngine, dense: Dense, hidden: Tensor, ids: Tensor) -> None:
    """Measure and print one call."""

    def run(module: Callable[..., Tensor], *call: Tensor) -> None:
        output = module(*call)
        if output.requires_grad:
            output.sum().backward()

    calls = {"dense": lambda: run(dense, hidden), "engine": lambda: run(layer, hidden, ids)}
    times = interleaved(calls, SECONDS_A_SHAPE)
    middle = {each: median(spent) for each, spent in times.items()}
    paired = median(one / other for one, other in zip(times["engine"], times["dense"], strict=True))
    assert layer.last_backend is not None
    print(
        f"| {name} | {shape[0]}×{shape[1]} | {middle['dense'] * 1e3:.2f} ms | {middle['engine'] * 1e3:.2f} ms | "
        f"{middle['engine'] / middle['dense']:.3f} | {paired:.3f} | {limit} | "
        f"{layer.last_backend.lowering} |",
        flush=True,
    )


def lowerings() -> None:
    """Processor time of each lowering of the routed branch alone, and which one `choose` takes."""
    print("| E, W, K | tokens | " + " | ".join(f"{each} µs" for each in LOWERINGS) + " | chosen |\n|---|---|" + "---|" * 4)
    for experts, width, top_k in SHAPES:
        layer = engine(experts, width, top_k, 0)
        for tokens in (1, 4, 16, 32, 64, 128, 256, 1024, 4096):
            hidden, ids = torch.randn(tokens, HIDDEN), torch.randint(VOCABULARY, (tokens,))
            weights = [2.0 / top_k] * top_k
            choice = choose(tokens=tokens, num_experts=experts, expert_width=width, weights=weights, device_type="cpu")
            spent = {each: _spent(layer, hidden, ids, each) for each in LOWERINGS if top_k == 2 or each != "by_pair"}
            cells = " | ".join(f"{spent[each] * 1e6:,.0f}" if each in spent else "–" for each in LOWERINGS)
            print(f"| {experts}, {width}, {top_k} | {tokens} | {cells} | {choice.lowering} |", flush=True)


def layouts() -> None:
    """Processor time of the shared branch with tokens as rows and as columns, and which one `tokens_as_columns` takes."""
    print("| shared branch | tokens | rows µs | columns µs | columns / rows | chosen |\n" + "|---" * 6 + "|")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        weights = tuple(torch.randn(shape).to(dtype) for shape in ((3072, HIDDEN), (3072, HIDDEN), (HIDDEN, 3072)))
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
            x = torch.randn(tokens, HIDDEN).to(dtype)
            calls = {"rows": partial(shared_forward, x, weights, keep=False), "columns": partial(shared_by_columns, x, weights)}
            with torch.no_grad():
                rows, columns = (median(spent) for spent in interleaved(calls, SECONDS_A_LAYOUT).values())
            chosen = "columns" if tokens_as_columns(tokens, dtype, "cpu") else "rows"
            figures = f"{rows * 1e6:,.0f} | {columns * 1e6:,.0f} | {columns / rows:.2f}"
            print(f"| {str(dtype).removeprefix('torch.')} | {tokens} | {figures} | {chosen} |", flush=True)


def _spent(layer: TRHashEngine, hidden: Tensor, ids: Tensor, lowering: str) -> float:
    config = layer.config
    experts = layer.expert_gate, layer.expert_up, layer.expert_down
    settings = list(config.route_weights), 1.0, config.routed_output_scale, "clamp", lowering
    times = []
    with torch.no_grad():
        for _ in range(9):
            start = process_time()
            TR_HASH_MLP(hidden, ids, layer.route_table, *experts, None, None, None, *settings)
            times.append(process_time() - start)
    return median(times[2:])


def main() -> None:
    """Print one markdown table."""
    torch.set_num_threads(1)
    allocator = ctypes.CDLL(None)
    allocator.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    allocator.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    print(f"{describe()}; load average {load}\n")
    if "--lowerings" in sys.argv[1:]:
        lowerings()
    elif "--layouts" in sys.argv[1:]:
        layouts()
    else:
        compare()


if __name__ == "__main__":
    main()
