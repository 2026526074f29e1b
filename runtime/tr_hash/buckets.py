"""Shapes that CUDA graphs are captured for, and which of them a call is padded to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering


@total_ordering
@dataclass(frozen=True)
class GraphBucket:
    """A captured shape; smaller means fewer tokens, then a smaller batch, then a shorter sequence.

    Raises:
        TypeError: a size that is not an int.
        ValueError: a size below 1.
    """

    batch_size: int
    sequence_length: int

    def __post_init__(self) -> None:
        for name, size in (("batch_size", self.batch_size), ("sequence_length", self.sequence_length)):
            if type(size) is not int:
                raise TypeError(f"{name} of a graph bucket must be an int, got {size!r}")
            if size < 1:
                raise ValueError(f"{name} of a graph bucket must be positive, got {size}")

    @property
    def token_capacity(self) -> int:
        """Batch size × sequence length."""
        return self.batch_size * self.sequence_length

    def holds(self, batch_size: int, sequence_length: int) -> bool:
        """Whether an input of this shape fits in without being reshaped."""
        return self.batch_size >= batch_size and self.sequence_length >= sequence_length

    def __lt__(self, other: GraphBucket) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[int, int, int]:
        return self.token_capacity, self.batch_size, self.sequence_length


class GraphBucketPlanner:
    """Chooses the smallest bucket that holds a call.

    Raises:
        ValueError: no bucket is given.
        TypeError: something else than buckets is.
    """

    def __init__(self, buckets: Iterable[GraphBucket]) -> None:
        given = tuple(buckets)
        if not all(isinstance(bucket, GraphBucket) for bucket in given):
            raise TypeError(f"buckets must be GraphBuckets, got {given!r}")
        self.buckets = tuple(sorted(set(given)))
        if not self.buckets:
            raise ValueError("at least one CUDA Graph bucket is required")

    def select(self, batch_size: int, sequence_length: int) -> GraphBucket:
        """The smallest bucket with room for both dimensions.

        Raises:
            ValueError: an empty dimension, or no bucket is large enough.
        """
        if batch_size < 1 or sequence_length < 1:
            raise ValueError(f"input batch and sequence dimensions must be positive, got {(batch_size, sequence_length)}")
        for bucket in self.buckets:
            if bucket.holds(batch_size, sequence_length):
                return bucket
        shapes = [(bucket.batch_size, bucket.sequence_length) for bucket in self.buckets]
        raise ValueError(
            f"no CUDA Graph bucket can contain input shape {(batch_size, sequence_length)}; there are {shapes}, "
            "so split the input or add a bucket"
        )
