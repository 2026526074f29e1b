"""Whether a model does the same with gradients on, where it may branch on them or on `requires_grad`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..._torch import tree_map
from ...analysis.example import Example
from .compare import compare_calls
from .figures import Limits
from .observe import Observation, observe


def change_by_gradients(original: nn.Module, example: Example, limits: Limits) -> str:
    """What is another in a call with gradients on than in one without; "" where nothing is.

    A model that raises with gradients on, as `out=` does, has no other meaning then. A call that writes buffers is not
    made with gradients on, because it would leave their history in the buffers.
    """
    without = observe(original, example)
    if without.buffers or without.error is not None:
        return ""
    found = observe(original, example, gradients=True)
    if found.error is not None:
        return ""
    return "; ".join(map(str, compare_calls(values_of(found), values_of(without), limits).differences))


def values_of(found: Observation) -> Observation:
    """What was observed without gradients and memory layouts, which fast paths choose otherwise."""

    def plain(leaf: Any) -> Any:
        return leaf.detach().clone(memory_format=torch.contiguous_format) if isinstance(leaf, torch.Tensor) else leaf

    return replace(found, outputs=tree_map(plain, found.outputs), inputs=tree_map(plain, found.inputs))
