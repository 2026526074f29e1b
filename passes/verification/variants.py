"""Calls made up around an example: other ids, other sizes, other numbers of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..._torch import size_expression, tree_flatten
from ...analysis.example import Example
from ...analysis.program import Domain, Program


def _copied(example: Example) -> tuple[list[Any], Any]:
    """The leaves of a copy of the call, and the structure that makes (args, kwargs) of them."""
    call = example.cloned()
    return tree_flatten((call.args, dict(call.kwargs)))


def with_tokens(
    program: Program, example: Example, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> Example | None:
    """The example with one token input replaced; None where `change` declines."""
    leaves, spec = _copied(example)
    place = [node.name for node in program.input_nodes()].index(name)
    changed = change(leaves[place].contiguous())
    if changed is None:
        return None
    leaves[place] = changed
    return Example(*spec.unflatten(leaves))


def first_replaced(ids: torch.Tensor, token: int) -> torch.Tensor | None:
    """`ids` with its first element replaced; None where there is none, or the dtype does not hold `token`."""
    if not ids.numel() or not torch.iinfo(ids.dtype).min <= token <= torch.iinfo(ids.dtype).max:
        return None
    changed = ids.clone()
    changed.view(-1)[0] = token
    return changed


def resized(program: Program, example: Example, symbol: sympy.Expr, size: int) -> Example:
    """Every dimension of that symbolic size cut down to `size`, or filled up to it by repeating; an empty one stays."""
    leaves, spec = _copied(example)
    for place, node in enumerate(program.input_nodes()):
        if isinstance(leaves[place], torch.Tensor):
            for dim, traced in enumerate(node.meta["val"].shape):
                if size_expression(traced) == symbol and (old := leaves[place].shape[dim]):
                    leaves[place] = leaves[place].index_select(dim, torch.arange(size, device=leaves[place].device) % old)
    return Example(*spec.unflatten(leaves))


def in_dtype(program: Program, example: Example, name: str, dtype: torch.dtype) -> list[Example]:
    """The example with its token ids in `dtype`, and with the last ids of the domain in their place."""
    last = program.tokens[name].ids().flip(0)

    def replaced(ids: torch.Tensor) -> torch.Tensor:
        return last[torch.arange(ids.numel()) % len(last)].reshape(ids.shape).to(ids.device, dtype)

    probes = [with_tokens(program, example, name, change) for change in (lambda ids: ids.to(dtype), replaced)]
    return [probe for probe in probes if probe is not None]


def laid_out_otherwise(program: Program, example: Example, name: str) -> Example | None:
    """The example with the elements of one input elsewhere in memory: contiguous, or neither that nor in their order.

    None where it has too few for that.
    """
    leaves, spec = _copied(example)
    place = [node.name for node in program.input_nodes()].index(name)
    value = leaves[place]
    order = range(value.dim(), -1, -1)
    turned = torch.stack([value, value]).permute(*order).contiguous().permute(*order)[0]
    leaves[place] = turned if value.is_contiguous() else value.contiguous()
    return None if leaves[place].is_contiguous() == value.is_contiguous() else Example(*spec.unflatten(leaves))


def in_rank(program: Program, example: Example, name: str, rank: int) -> list[Example]:
    """The example with every token axis merged and dealt out again in `rank` dimensions, in every input that has them.

    Returns:
        A call whose leading dimensions are 1, and one with another size from 2 on in each: what reads along a dimension
        shows only there. None where an input's axes do not start with those of the token ids, where an input beside
        them has one row, which repeated shows no more, or where there are no ids.
    """
    inputs = program.input_nodes()
    leaves, spec = _copied(example)
    token = [node.name for node in inputs].index(name)
    axes = _sizes(inputs[token])
    rows: dict[int, torch.Tensor] = {}
    for place, node in enumerate(inputs):
        sizes, leaf = _sizes(node), leaves[place]
        if place == token or not set(axes).isdisjoint(sizes):
            rows[place] = leaf.reshape(-1, *leaf.shape[len(axes) :])
            if sizes[: len(axes)] != axes or len(rows[place]) < (1 if place == token else 2):
                return []
    shapes = _shapes(rank, len(rows[token]))
    rows[token] = _with_others(rows[token], program.tokens[name])

    def dealt(shape: tuple[int, ...]) -> Example:
        changed = list(leaves)
        for place, each in rows.items():
            chosen = torch.arange(prod(shape), device=each.device) % len(each)
            changed[place] = each[chosen].reshape(shape + each.shape[1:])
        return Example(*spec.unflatten(changed))

    return [dealt(shape) for shape in shapes]


def _shapes(rank: int, count: int) -> list[tuple[int, ...]]:
    """The shapes of `rank` dimensions that `count` ids are dealt out in; more ids where one would be too small."""
    if rank == 0:
        return [()]
    *leading, last = range(2, rank + 2)
    return list({(*[1] * (rank - 1), count): None, (*leading, max(last, -(-count // prod(leading)))): None})


def _with_others(ids: torch.Tensor, domain: Domain) -> torch.Tensor:
    """1-D ids, and behind them those of the domain that are not among them."""
    every = domain.ids().to(ids)
    return torch.cat([ids, every[~torch.isin(every, ids)]])


def _sizes(node: Node) -> list[sympy.Expr]:
    """The traced sizes of an input; none where it is no tensor."""
    traced = node.meta["val"]
    return [size_expression(size) for size in traced.shape] if isinstance(traced, torch.Tensor) else []
