"""How torch brings the two operands of an operation to one dtype, and what that rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_PAIRS = (("self", "other"), ("self", "threshold"), ("elements", "test_elements"), ("elements", "test_element"))


def promoted(arguments: Mapping[str, Any], wide: bool = False) -> dict[str, Any]:
    """An operation's arguments, two that meet in it rounded to the dtype that it computes in.

    A number, or a tensor without dimensions, takes the dtype of a tensor with dimensions: `x > 0.1` compares a bfloat16
    `x` with 0.1001. Integers and booleans are left.

    Args:
        arguments: by schema name.
        wide: bfloat16 and float16 are computed in float32, and numbers are rounded to that.
    """
    found = dict(arguments)
    for names in _PAIRS:
        pair = {name: found[name] for name in names if isinstance(found.get(name), torch.Tensor | int | float)}
        if len(pair) == len(names) and (dtype := torch.result_type(*pair.values())).is_floating_point:
            dtype = torch.promote_types(dtype, torch.float32) if wide else dtype
            found |= {name: _rounded(value, dtype) for name, value in pair.items()}
    return found


def _rounded(value: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=dtype)
    return value.to(dtype) if value.is_floating_point() else value
