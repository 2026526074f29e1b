"""Calls made up around an example: other ids, other sizes, other numbers of dimensions."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from ..._torch import size_expression, tree_flatten
from ...analysis.example import Example
from ...analysis.program import Program


def with_tokens(
    program: Program, example: Example, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> Example | None:
    """The example with one token input replaced; None where `change` declines."""
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    place = [node.name for node in program.input_nodes()].index(name)
    changed = change(leaves[place].contiguous())
    if changed is None:
        return None
    leaves[place] = changed
    args, kwargs = spec.unflatten(leaves)
    return Example(args, kwargs)


def first_replaced(ids: torch.Tensor, token: int) -> torch.Tensor | None:
    """`ids` with its first element replaced; None where there is none, or the dtype does not hold `token`."""
    if not ids.numel() or not torch.iinfo(ids.dtype).min <= token <= torch.iinfo(ids.dtype).max:
        return None
    changed = ids.clone()
    changed.view(-1)[0] = token
    return changed


def resized(program: Program, example: Example, symbol: sympy.Expr, size: int) -> Example:
    """Every dimension of that symbolic size cut down to `size`, or filled up to it by repeating; an empty one stays."""
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    for place, node in enumerate(program.input_nodes()):
        if isinstance(leaves[place], torch.Tensor):
            for dim, traced in enumerate(node.meta["val"].shape):
                if size_expression(traced) == symbol and (old := leaves[place].shape[dim]):
                    leaves[place] = leaves[place].index_select(dim, torch.arange(size, device=leaves[place].device) % old)
    args, kwargs = spec.unflatten(leaves)
    return Example(args, kwargs)


def in_rank(program: Program, example: Example, name: str, rank: int) -> Example | None:
    """The example with every token axis merged and dealt out again in `rank` dimensions, in every input that has them.

    None where an input's axes do not start with those of the token ids.
    """
    inputs = program.input_nodes()
    traced = next(node.meta["val"] for node in inputs if node.name == name)
    axes = [size_expression(size) for size in traced.shape]
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    changed: list[object] = []
    for node, leaf in zip(inputs, leaves, strict=True):
        if not isinstance(leaf, torch.Tensor) or not any(size_expression(s) in axes for s in node.meta["val"].shape):
            changed.append(leaf)
            continue
        if [size_expression(size) for size in node.meta["val"].shape[: len(axes)]] != axes or not leaf.numel():
            return None
        rest = leaf.shape[len(axes) :]
        flat = leaf.reshape(-1, *rest)
        changed.append(flat[0] if rank == 0 else flat.reshape(*([1] * (rank - 1)), *flat.shape))
    args, kwargs = spec.unflatten(changed)
    return Example(args, kwargs)
