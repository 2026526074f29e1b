"""The comparison that the tests of passes share, independent of the package's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

EXACT = (torch.bool, torch.uint8, torch.int32, torch.int64)


def check(reference: Any, candidate: Any, max_abs: float = 1e-5, relative_l2: float = 1e-5) -> None:
    """Both trees have one structure, dtypes and shapes; floats within both limits, everything else equal."""
    leaves, structure = tree_flatten(reference)
    others, other_structure = tree_flatten(candidate)
    assert other_structure == structure
    for one, other in zip(leaves, others, strict=True):
        assert (other.dtype, other.shape) == (one.dtype, one.shape)
        if one.dtype in EXACT:
            assert torch.equal(one, other)
        elif one.numel():
            error = (other.double() - one.double()).abs()
            assert error.max() <= max_abs
            assert error.norm() <= relative_l2 * one.double().norm()


@pytest.fixture
def agree() -> Callable[..., None]:
    return check
