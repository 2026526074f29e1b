"""A stand-in for CUDA graphs on the CPU: what ran at the capture runs at every replay, and nothing else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foldfx._torch import tree_map
from foldfx.runtime.tr_hash import GraphBucket, TRHashEngine, backends
from foldfx.runtime.tr_hash.cuda_graph import Compute
from foldfx.runtime.tr_hash.graphs import GraphPool

from .definition import HIDDEN, VOCABULARY, engine

BUCKETS = (GraphBucket(2, 4), GraphBucket(4, 8))


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with operands of the address and the strides they have at that moment, as a graph keeps them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kept = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, args)
        self.calls.append((func, kept, kwargs or {}, result))
        return result


class TapedGraph:
    """`foldfx.runtime.tr_hash.graphs.Captured` by a tape; notes what its inputs held at each replay."""

    made: ClassVar[list[TapedGraph]] = []
    pause: ClassVar[float] = 0.0

    def __init__(self, compute: Compute, hidden: Tensor, ids: Tensor) -> None:
        self.hidden, self.ids = hidden, ids
        with Tape() as tape:
            self.output = compute(hidden, ids)
        self._calls = tape.calls
        self.replays: list[tuple[Tensor, Tensor]] = []
        self.made.append(self)

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def replay(self) -> None:
        time.sleep(self.pause)
        self.replays.append((self.hidden.clone(), self.ids.clone()))
        with torch.no_grad():
            for func, args, kwargs, recorded in self._calls:
                result = func(*args, **kwargs)
                if result.data_ptr() != recorded.data_ptr():
                    recorded.copy_(result)


@pytest.fixture(autouse=True)
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers on the CPU believe in a CUDA device, and have tapes for graphs."""

    def on_cuda(circumstances: backends.Circumstances) -> backends.BackendDecision:
        return backends.decide(circumstances._replace(device_type="cuda"))

    monkeypatch.setattr("foldfx.runtime.tr_hash.engine.decide", on_cuda)
    monkeypatch.setattr(GraphPool.__init__, "__defaults__", (TapedGraph,))
    monkeypatch.setattr(TapedGraph, "made", [])


def graphed(**values: Any) -> TRHashEngine:
    """A layer that asks for graphs."""
    return engine(backend="cuda_graph", phase="inference", graph_buckets=BUCKETS, **values).eval()


def plain_of(layer: TRHashEngine) -> TRHashEngine:
    """One that computes what `layer` does now, without graphs."""
    plain = engine(route_weights=layer.config.route_weights, expert_width=layer.config.expert_width).eval()
    plain.load_state_dict(layer.state_dict())
    plain.set_active_capacity(*layer.capacity)
    return plain


def call(batch: int = 2, length: int = 4) -> tuple[Tensor, Tensor]:
    """Hidden states and ids."""
    return torch.randn(batch, length, HIDDEN), torch.randint(VOCABULARY, (batch, length))


def in_threads(work: Callable[..., None], calls: Iterable[tuple[Any, ...]]) -> None:
    """`work(*call)` for every call at once, each in a thread; returns when all are done."""
    threads = [threading.Thread(target=work, args=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
