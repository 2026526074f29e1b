"""What a `CudaGraph` asks of CUDA, and in which order, told by a `torch.cuda` that only takes notes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

from foldfx.runtime.tr_hash import cuda_graph
from foldfx.runtime.tr_hash.cuda_graph import WARM_UPS, CudaGraph

CUDA_0, CUDA_1 = torch.device("cuda:0"), torch.device("cuda:1")


class Cuda:
    """Notes what happens as (what, current device, current stream)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.notes: list[tuple[str, torch.device, str]] = []
        self.device, self.streams, self.made = CUDA_0, ["user's"], 0
        self.captures: list[dict[str, Any]] = []
        for name in ("CUDAGraph", "Event", "Stream"):
            patch.setattr(torch.cuda, name, getattr(self, f"_{name.lower()}"))
        patch.setattr(torch.cuda, "current_stream", lambda: _Stream(self, self.streams[-1]))
        for name in ("device", "stream", "graph"):
            patch.setattr(torch.cuda, name, getattr(self, f"_in_{name}"))
        patch.setattr(cuda_graph, "_device", cache(cuda_graph._Device))

    def note(self, what: str) -> None:
        self.notes.append((what, self.device, self.streams[-1]))

    def _number(self) -> int:
        self.made += 1
        return self.made

    def _cudagraph(self) -> _Graph:
        return _Graph(self)

    def _event(self) -> _Event:
        return _Event(self)

    def _stream(self, device: torch.device) -> _Stream:
        return _Stream(self, f"capture stream of {device}")

    @contextmanager
    def _in_device(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    @contextmanager
    def _in_stream(self, stream: _Stream) -> Iterator[None]:
        before, self.streams = self.streams, [*self.streams, stream.name]
        try:
            yield
        finally:
            self.streams = before

    @contextmanager
    def _in_graph(self, graph: _Graph, pool: Any, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
        """Where the capture fails, its stream stays the current one, as in torch."""
        self.captures.append({"pool": pool, "stream": stream.name, "mode": capture_error_mode})
        graph.handle = (0, self._number()) if pool is None else pool
        self.streams = [*self.streams, stream.name]
        self.note("capture begins")
        yield
        self.note("capture ends")
        self.streams = self.streams[:-1]


class _Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_event(self, event: _Event) -> None:
        self.cuda.note(f"{self.name} waits for {event.recorded_on}")


class _Event:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.recorded_on = cuda, "nothing"

    def record(self, stream: _Stream) -> None:
        self.recorded_on = stream.name
        self.cuda.note(f"recorded on {stream.name}")


class _Graph:
    handle: tuple[int, int]

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.note("replay")

    def pool(self) -> tuple[int, int]:
        return self.handle


class Static:
    """A tensor on a CUDA device, as far as a graph looks at it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.used_on = device, set[str]()

    def record_stream(self, stream: _Stream) -> None:
        self.used_on.add(stream.name)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def captured(cuda: Cuda, device: torch.device = CUDA_0, *, fails: bool = False) -> CudaGraph:
    def compute(hidden: Any, ids: Any) -> Any:
        cuda.note("compute")
        if fails and "capture" in cuda.streams[-1]:
            raise RuntimeError("operation not permitted when stream is capturing")

    tensors: Any = Static(device), Static(device)
    return CudaGraph(compute, *tensors)


def test_captured_on_the_device_of_its_inputs_after_warm_ups(cuda: Cuda) -> None:
    """Also where another device is the current one; nothing depends on what other threads do meanwhile."""
    captured(cuda, CUDA_1)
    inside = (CUDA_1, f"capture stream of {CUDA_1}")
    warm = [("compute", CUDA_1, "user's")] * WARM_UPS
    assert cuda.notes == [*warm, ("capture begins", *inside), ("compute", *inside), ("capture ends", *inside)]
    assert cuda.captures == [{"pool": None, "stream": inside[1], "mode": "thread_local"}]
    assert (cuda.device, cuda.streams) == (CUDA_0, ["user's"])


def test_graphs_that_live_on_one_device_share_memory_and_stream(cuda: Cuda) -> None:
    one, two, other = captured(cuda), captured(cuda), captured(cuda, CUDA_1)
    assert one.memory_pool() == two.memory_pool() != other.memory_pool()
    assert [each["stream"] for each in cuda.captures] == [f"capture stream of {each}" for each in (CUDA_0, CUDA_0, CUDA_1)]
    del one
    gc.collect()
    assert captured(cuda).memory_pool() == two.memory_pool()


def test_a_memory_pool_without_graphs_is_not_used_again(cuda: Cuda) -> None:
    """Torch stops with an internal assertion there."""
    before = captured(cuda)
    pool = before.memory_pool()
    del before
    gc.collect()
    assert captured(cuda).memory_pool() != pool


def test_a_failed_capture_leaves_the_stream_and_spoils_the_memory_pool(cuda: Cuda) -> None:
    before = captured(cuda)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(cuda, fails=True)
    assert (cuda.device, cuda.streams) == (CUDA_0, ["user's"])
    after = captured(cuda)
    assert before.memory_pool() != after.memory_pool() == captured(cuda).memory_pool()


def test_turns_of_all_graphs_of_a_device_follow_each_other(cuda: Cuda) -> None:
    one, two, other = captured(cuda), captured(cuda), captured(cuda, CUDA_1)
    cuda.notes.clear()
    with one.turn():
        one.replay()
    cuda.streams = ["side"]
    with two.turn():
        two.replay()
    with other.turn():
        other.replay()
    assert cuda.notes == [
        ("user's waits for nothing", CUDA_0, "user's"),
        ("replay", CUDA_0, "user's"),
        ("recorded on user's", CUDA_0, "user's"),
        ("side waits for user's", CUDA_0, "side"),
        ("replay", CUDA_0, "side"),
        ("recorded on side", CUDA_0, "side"),
        ("side waits for nothing", CUDA_1, "side"),
        ("replay", CUDA_1, "side"),
        ("recorded on side", CUDA_1, "side"),
    ]
    used: Any = two.hidden, two.ids
    assert [each.used_on for each in used] == [{"side"}, {"side"}]


def test_a_turn_that_fails_is_waited_for(cuda: Cuda) -> None:
    graph = captured(cuda)
    with pytest.raises(MemoryError), graph.turn():
        raise MemoryError
    assert cuda.notes[-1][0] == "recorded on user's"
