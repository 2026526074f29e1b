"""An einsum of many operands is traced as the pairs torch contracts, so that each has a fact of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class EinsumInPairs(TorchFunctionMode):
    """Within this context `torch.einsum` of three and more operands calls itself for two at a time, from the left.

    That is the order in which torch contracts them itself, bit for bit. What a mixture of experts computes from the token
    alone, and weighs by a contextual gate in the same einsum, then is a value of its own. Left as they are: equations with an
    ellipsis or without an output, operands with lists of axes, and all where opt_einsum chooses the order.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.einsum and _is_contracted_from_the_left(args):
            return _in_pairs(args[0], args[1:])
        return func(*args, **(kwargs or {}))


def _is_contracted_from_the_left(args: tuple[Any, ...]) -> bool:
    if len(args) < 4 or not isinstance(args[0], str) or torch.backends.opt_einsum.enabled:
        return False
    return "->" in args[0] and "..." not in args[0]


def _in_pairs(equation: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    inputs, output = equation.replace(" ", "").split("->")
    left, *others = inputs.split(",")
    result, *rest = operands
    for place, (right, operand) in enumerate(zip(others, rest, strict=True), 1):
        needed = {*output, *"".join(others[place:])}
        kept = "".join(dict.fromkeys(label for label in left + right if label in needed))
        after = output if place == len(others) else kept
        result = torch.einsum(f"{left},{right}->{after}", result, operand)
        left = after
    return result
