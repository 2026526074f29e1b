"""The smallest bucket that holds a call."""

from __future__ import annotations

import pytest

from foldfx.runtime.tr_hash import GraphBucket, GraphBucketPlanner


def planner(*shapes: tuple[int, int]) -> GraphBucketPlanner:
    return GraphBucketPlanner(GraphBucket(*shape) for shape in shapes)


@pytest.mark.parametrize(
    ("call", "chosen"),
    [
        ((1, 1), (1, 512)),
        ((1, 512), (1, 512)),
        ((2, 1), (2, 256)),
        ((2, 256), (2, 256)),
        ((2, 257), (4, 512)),
        ((3, 128), (4, 128)),
        ((4, 129), (4, 512)),
    ],
)
def test_smallest_containing_bucket(call: tuple[int, int], chosen: tuple[int, int]) -> None:
    """Of one capacity, the smaller batch comes first."""
    bucket = planner((4, 512), (4, 128), (2, 256), (1, 512)).select(*call)
    assert (bucket.batch_size, bucket.sequence_length) == chosen


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one CUDA Graph bucket is required"):
        GraphBucketPlanner(())
    with pytest.raises(TypeError, match=r"buckets must be GraphBuckets, got \(\(2, 3\),\)"):
        GraphBucketPlanner([(2, 3)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"no CUDA Graph bucket can contain input shape \(3, 1\); there are \[\(2, 8\)\]"):
        planner((2, 8)).select(3, 1)
    for empty in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="must be positive"):
            planner((2, 8)).select(*empty)
    with pytest.raises(ValueError, match="batch_size of a graph bucket must be positive"):
        GraphBucket(0, 4)
    for wrong in (True, 2.0):
        with pytest.raises(TypeError, match="sequence_length of a graph bucket must be an int"):
            GraphBucket(1, wrong)  # type: ignore[arg-type]
