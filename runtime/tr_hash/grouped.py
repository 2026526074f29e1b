"""Chosen experts only: the tokens of each group are gathered, computed together and added back in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .grouping import Group
from .swiglu import Weights, product, product_backward


def forward(x: Tensor, experts: Weights, groups: Sequence[Group], y: Tensor, kept: tuple[Tensor, Tensor] | None) -> None:
    """Add Σ_e factor_e · (silu(x G_e) · (x U_e)) D_e of every group to `y`.

    Args:
        x: [N, H].
        experts: gate and up [E, H, W], down [E, W, H].
        groups: of the tokens.
        y: [N, H], written.
        kept: written for `backward`, where there is one: pre-activations of gate and up, both [n, g·W] for groups of g
            experts with n tokens in all, rows in the order of the groups.
    """
    first = 0
    for group in groups:
        rows = x.index_select(0, group.tokens)
        gate, up = rows @ _across(experts[0], group), rows @ _across(experts[1], group)
        if kept is not None:
            for into, columns in zip(kept, (gate, up), strict=True):
                into[first : first + len(rows)] = columns
            first += len(rows)
        y.index_add_(0, group.tokens, _scaled(product(gate, up, keep=False), group) @ _down(experts[2], group))


def backward(
    grad_y: Tensor, x: Tensor, experts: Weights, groups: Sequence[Group], kept: tuple[Tensor, Tensor], *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `forward`, those of experts that no token chose being zero.

    Returns:
        The gradient of x, [N, H], and those of the experts, if needed.
    """
    grad_x = torch.zeros_like(x)
    grads = (
        tuple(torch.zeros_like(weight, memory_format=torch.contiguous_format) for weight in experts) if needs_weights else None
    )
    first = 0
    for group in groups:
        rows, grad_rows = x.index_select(0, group.tokens), grad_y.index_select(0, group.tokens)
        gate, up = (columns[first : first + len(rows)] for columns in kept)
        first += len(rows)
        grad_product = _scaled(grad_rows @ _down(experts[2], group).t(), group)
        grad_gate, grad_up, hidden = product_backward(gate, up, grad_product)
        part = torch.addmm(grad_gate @ _across(experts[0], group).t(), grad_up, _across(experts[1], group).t())
        grad_x.index_add_(0, group.tokens, part)
        if grads is not None:
            down = _scaled(hidden, group).t() @ grad_rows
            for place, expert in enumerate(group.experts):
                columns = slice(place * experts[0].shape[2], (place + 1) * experts[0].shape[2])
                grads[0][expert].addmm_(rows.t(), grad_gate[:, columns])
                grads[1][expert].addmm_(rows.t(), grad_up[:, columns])
                grads[2][expert].add_(down[columns])
    return grad_x, None if grads is None else (grads[0], grads[1], grads[2])


def _scaled(columns: Tensor, group: Group) -> Tensor:
    """`columns` [n, g·W] times the factors, in place."""
    columns.view(len(columns), len(group.experts), -1).mul_(group.factors.unsqueeze(2))
    return columns


def _across(weights: Tensor, group: Group) -> Tensor:
    """[H, g·W] of the group's experts."""
    return torch.cat([weights[expert] for expert in group.experts], 1) if len(group.experts) > 1 else weights[group.experts[0]]


def _down(weights: Tensor, group: Group) -> Tensor:
    """[g·W, H] of the group's experts."""
    return torch.cat([weights[expert] for expert in group.experts], 0) if len(group.experts) > 1 else weights[group.experts[0]]
