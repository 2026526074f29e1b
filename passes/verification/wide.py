"""The original computed in float64: the reference that low-precision outputs are measured by."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from ..._torch import tree_flatten, tree_map
from ...analysis.example import Example
from .figures import LOW_PRECISION
from .observe import Observation, observe


def has_low_precision(tree: Any) -> bool:
    """Whether some leaf is a float tensor of two bytes."""
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in LOW_PRECISION for leaf in tree_flatten(tree)[0])


def observe_wide(original: nn.Module, example: Example) -> Observation:
    """`observe` for a float64 copy of the model on a float64 copy of the call.

    A model that names narrow dtypes in its code, or cannot be copied, may raise; that is the observation's error.
    """
    args, kwargs = tree_map(_widened, (example.args, dict(example.kwargs)))
    try:
        copy = deepcopy(original).double()
    except Exception as error:
        return Observation(None, None, {}, error=error)
    return observe(copy, Example(args, kwargs))


def _widened(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
