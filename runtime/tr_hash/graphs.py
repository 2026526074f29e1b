"""CUDA graphs of a layer, one for each bucket: captured when first needed, thrown away when anything they read moves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from .buckets import GraphBucket, GraphBucketPlanner
from .cuda_graph import Compute, CudaGraph

_ONE_AT_A_TIME = Lock()
"""Held while a graph is captured, launched or thrown away: graphs share buffers among threads, and memory among layers."""


class Captured(Protocol):
    """A recorded computation that reads `hidden` and `ids` and writes `output` at every replay."""

    hidden: Tensor
    ids: Tensor
    output: Tensor

    def turn(self) -> AbstractContextManager[None]:
        """Within it the tensors are the caller's."""
        ...

    def replay(self) -> None:
        """Run it once more; within a turn."""
        ...


class GraphPool:
    """The graphs of one layer. Threads may share it; copies and pickles start without graphs.

    Args:
        buckets: shapes to capture; may be empty, then `run` refuses.
        capture: makes a graph from the computation and its two inputs.
    """

    def __init__(
        self, buckets: Iterable[GraphBucket], capture: Callable[[Compute, Tensor, Tensor], Captured] = CudaGraph
    ) -> None:
        self.buckets = tuple(buckets)
        self._capture = capture
        self._graphs: dict[tuple[Hashable, ...], Captured] = {}
        self._rests_on: tuple[Hashable, ...] = ()

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget every graph."""
        with _ONE_AT_A_TIME:
            self._graphs.clear()

    def run(
        self, compute: Compute, hidden: Tensor, token_ids: Tensor, *, reads: Iterable[Tensor], settings: Hashable = ()
    ) -> Tensor:
        """`compute(hidden, token_ids)` by the graph of the smallest bucket, captured if there is none.

        Input is padded with zeros and id 0. Each dtype, device, state of autocast and numeric setting of torch has a graph
        of its own.

        Args:
            hidden: [B, S, H].
            token_ids: integers [B, S].
            reads: every tensor that `compute` reads besides; where one is another or has been written, all graphs go.
            settings: whatever else it depends on; where that is another, all graphs go.

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
        rests_on = settings, *map(_identity, reads)
        key = bucket, hidden.dtype, hidden.device, _numerics(hidden.device.type)
        with _ONE_AT_A_TIME:
            if rests_on != self._rests_on:
                self._graphs.clear()
                self._rests_on = rests_on
            if key not in self._graphs:
                self._graphs[key] = self._captured(compute, hidden, bucket)
            graph = self._graphs[key]
            with graph.turn():
                graph.hidden.zero_()
                graph.ids.zero_()
                graph.hidden[:batch, :length] = hidden
                graph.ids[:batch, :length] = token_ids
                graph.replay()
                return graph.output[:batch, :length].clone()

    def _captured(self, compute: Compute, hidden: Tensor, bucket: GraphBucket) -> Captured:
        shape = bucket.batch_size, bucket.sequence_length
        with torch.inference_mode(False), torch.no_grad():  # inference tensors could not be written outside of that mode
            padded = hidden.new_zeros((*shape, hidden.shape[2]))
            return self._capture(compute, padded, padded.new_zeros(shape, dtype=torch.int64))

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphPool:
        return GraphPool(self.buckets, self._capture)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphPool, (self.buckets, self._capture)


def _identity(tensor: Tensor) -> tuple[Hashable, ...]:
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _numerics(device_type: str) -> tuple[Hashable, ...]:
    """Settings that decide which kernels are captured. (`get_float32_matmul_precision` raises where two APIs were used.)"""
    matmul = torch.backends.cuda.matmul
    return (
        torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None,
        matmul.fp32_precision,
        matmul.allow_fp16_accumulation,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
    )
