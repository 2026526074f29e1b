"""A computation recorded on a CUDA device, and what the graphs of a device share.

Nothing here is safe for threads: captures and turns follow each other in the whole process, as `graphs.GraphPool` sees to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

WARM_UPS = 3

Compute = Callable[[Tensor, Tensor], Tensor]


class CudaGraph:
    """`compute` recorded on a CUDA device.

    All graphs of a device have one memory pool, that of whichever lives. This is safe in any order of replays, because
    inputs lie outside it, and a graph's output has been copied before the next one's turn.

    Args:
        compute: must neither synchronise with the host nor have shapes that depend on values.
        hidden: [B, S, H] on the device; read at every replay.
        ids: int64 [B, S] on the device; read at every replay.
    """

    def __init__(self, compute: Compute, hidden: Tensor, ids: Tensor) -> None:
        self.hidden, self.ids = hidden, ids
        with torch.cuda.device(hidden.device):
            for _ in range(WARM_UPS):  # not on the capture stream: the workspace of cuBLAS there belongs into the pool
                compute(hidden, ids)
            self._graph = torch.cuda.CUDAGraph()
            self._device = _device(hidden.device)
            with self._device.capturing(self, self._graph):
                self.output = compute(hidden, ids)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within it `hidden` and `ids` may be written, the graph replayed and `output` read, all on the current stream.

        Turns of all graphs of the device follow each other, on whichever streams they are.
        """
        with torch.cuda.device(self.hidden.device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._device.last_turn)
            try:
                yield
            finally:
                self._device.last_turn.record(stream)
                self.hidden.record_stream(stream)
                self.ids.record_stream(stream)

    def replay(self) -> None:
        """Run the graph on what `hidden` and `ids` hold now."""
        self._graph.replay()

    def memory_pool(self) -> Any:
        """The handle, opaque, of the memory that the graph computes in."""
        return self._graph.pool()


class _Device:
    """What the graphs of a device share.

    Attributes:
        last_turn: recorded where the last turn of any graph ends.
    """

    def __init__(self, device: torch.device) -> None:
        self.last_turn = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._living: WeakSet[CudaGraph] = WeakSet()

    @contextmanager
    def capturing(self, owner: CudaGraph, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Record into `graph` what happens within; the current stream is restored even where the capture fails."""
        living, self._living = list(self._living), WeakSet()  # held: a pool that no graph has any more cannot be shared
        pool = living[0].memory_pool() if living else None
        with (
            torch.cuda.stream(self._stream),
            torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            yield
        self._living = WeakSet([*living, owner])  # not after a failure, which leaves the pool unusable


_device = cache(_Device)


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream of `device` is being captured into a graph, by whomever."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
