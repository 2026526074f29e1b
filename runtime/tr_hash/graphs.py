"""CUDA graphs of a layer, one for each bucket: captured when first needed, thrown away when anything they read moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from .buckets import GraphBucket, GraphBucketPlanner

WARM_UPS = 3

Compute = Callable[[Tensor, Tensor], Tensor]
Identity = tuple[Any, ...]


class Captured(Protocol):
    """A recorded computation that reads `hidden` and `ids` and writes `output` at every replay."""

    hidden: Tensor
    ids: Tensor
    output: Tensor

    def replay(self) -> None:
        """Run it once more."""
        ...


class CudaGraph:
    """`compute` recorded on a CUDA device.

    Args:
        compute: must neither synchronise with the host nor have shapes that depend on values.
        hidden: [B, S, H] on the device; read at every replay.
        ids: int64 [B, S] on the device; read at every replay.
    """

    def __init__(self, compute: Compute, hidden: Tensor, ids: Tensor) -> None:
        self.hidden, self.ids = hidden, ids
        stream = torch.cuda.Stream(hidden.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(hidden.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute(hidden, ids)
        torch.cuda.current_stream(hidden.device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.output = compute(hidden, ids)

    def replay(self) -> None:
        """Run the graph on what `hidden` and `ids` hold now."""
        self._graph.replay()


class GraphPool:
    """The graphs of one layer.

    Args:
        buckets: shapes to capture; may be empty, then `run` refuses.
        capture: makes a graph from the computation and its two inputs.
    """

    def __init__(
        self, buckets: Iterable[GraphBucket], capture: Callable[[Compute, Tensor, Tensor], Captured] = CudaGraph
    ) -> None:
        self.buckets = tuple(buckets)
        self._capture = capture
        self._graphs: dict[tuple[GraphBucket, torch.dtype, torch.device], Captured] = {}
        self._read: Identity = ()

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget every graph."""
        self._graphs.clear()

    def run(self, compute: Compute, hidden: Tensor, token_ids: Tensor, reads: Iterable[Tensor]) -> Tensor:
        """`compute(hidden, token_ids)` by the graph of the smallest bucket, captured if there is none.

        Input is padded with zeros and id 0.

        Args:
            hidden: [B, S, H].
            token_ids: integers [B, S].
            reads: every tensor that `compute` reads besides; where one is another or has been written, all graphs go.

        Returns:
            [B, S, H], memory of its own.

        Raises:
            ValueError: no bucket holds the shape.
            RuntimeError: gradients are enabled.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("CUDA Graph TR-Hash requires eval mode and torch.no_grad(); gradients are enabled")
        batch, length = token_ids.shape
        bucket = GraphBucketPlanner(self.buckets).select(batch, length)
        read = tuple((each.data_ptr(), each._version, each.dtype, each.device, each.shape) for each in reads)
        if read != self._read:
            self.clear()
            self._read = read
        key = bucket, hidden.dtype, hidden.device
        if key not in self._graphs:
            shape = bucket.batch_size, bucket.sequence_length
            padded = hidden.new_zeros((*shape, hidden.shape[2]))
            self._graphs[key] = self._capture(compute, padded, token_ids.new_zeros(shape, dtype=torch.int64))
        graph = self._graphs[key]
        graph.hidden.zero_()
        graph.ids.zero_()
        graph.hidden[:batch, :length] = hidden
        graph.ids[:batch, :length] = token_ids
        graph.replay()
        return graph.output[:batch, :length].clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphPool:
        return GraphPool(self.buckets, self._capture)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphPool, (self.buckets, self._capture)
