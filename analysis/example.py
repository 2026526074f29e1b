"""One call of the model, as the user gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .._torch import tree_flatten, tree_map
from ..errors import ExampleError


@dataclass(frozen=True)
class Example:
    """Arguments of one call of the model.

    Args:
        args: positional arguments; tensors, numbers, or pytrees of them.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple):
            raise ExampleError(
                f"Example.args is a {type(self.args).__name__}; pass a tuple of positional arguments, "
                "for one argument Example((ids,))"
            )
        if not isinstance(self.kwargs, Mapping):
            raise ExampleError(f"Example.kwargs is a {type(self.kwargs).__name__}; pass a mapping of argument names to values")

    def leaves(self) -> list[Any]:
        """What the pytrees of the arguments hold, positional ones first."""
        return tree_flatten((self.args, dict(self.kwargs)))[0]

    def cloned(self) -> Example:
        """The same call with tensors of its own (strides kept, expanded ones aside), so that a run cannot touch the user's."""
        args, kwargs = tree_map(_clone, (self.args, dict(self.kwargs)))
        return Example(args, kwargs)

    def run(self, model: nn.Module) -> Any:
        """What `model` returns for a copy of the call, without gradients and from one seed.

        Raises:
            ExampleError: the model fails.
        """
        call = self.cloned()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return model(*call.args, **call.kwargs)
            except Exception as error:
                raise ExampleError(f"the model itself fails on the example: {type(error).__name__}: {error}") from error


def _clone(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if 0 in leaf.stride():
        return leaf.detach().clone()
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return copy.copy_(leaf.detach())


def as_examples(examples: Iterable[Example | tuple[Any, Any]]) -> list[Example]:
    """`examples` as `Example`s; an `(args, kwargs)` pair counts as one.

    Raises:
        ExampleError: none are given, an item is neither, or a tensor in one is on the meta device.
    """
    if not isinstance(examples, Iterable):
        raise ExampleError(f"the examples are of type {type(examples).__name__}; pass a list of foldfx.Example(args, kwargs)")
    result = []
    for place, item in enumerate(examples):
        if isinstance(item, Example):
            result.append(item)
        elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], Mapping):
            result.append(Example(*item))
        else:
            raise ExampleError(f"example {place} is a {type(item).__name__}; pass foldfx.Example(args, kwargs)")
        if any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in result[-1].leaves()):
            raise ExampleError(
                f"example {place} has a tensor on the meta device, which holds no values; move it to the model's"
            )
    if not result:
        raise ExampleError("no examples: complete outputs are compared on them, so at least one is required")
    return result
