"""Chosen experts only: rows are gathered once, sorted by group, multiplied group by group and added back once."""

from __future__ import annotations

import torch
from torch import Tensor

from .grouping import Grouping
from .swiglu import Weights, product, product_backward


def forward(x: Tensor, experts: Weights, grouping: Grouping, y: Tensor, gate: Tensor, up: Tensor, *, keep: bool) -> None:
    """Add Σ_e factor_e · (silu(x G_e) · (x U_e)) D_e of every group to `y`.

    Args:
        x: [N, H].
        experts: gate and up [E, H, W], down [E, W, H].
        grouping: of the tokens, R rows in groups of g experts.
        y: [N, H], written.
        gate, up: [R, g·W], written with the pre-activations.
        keep: leave them so, for `backward`.
    """
    rows = x.index_select(0, grouping.tokens)
    for members, part in grouping.parts():
        torch.mm(rows[part], _across(experts[0], members), out=gate[part])
        torch.mm(rows[part], _across(experts[1], members), out=up[part])
    hidden = _scale(product(gate, up, keep=keep), grouping.factors)
    for members, part in grouping.parts():
        torch.mm(hidden[part], _stacked(experts[2], members), out=rows[part])
    y.index_add_(0, grouping.tokens, rows)


def backward(
    grad_y: Tensor, x: Tensor, experts: Weights, grouping: Grouping, gate: Tensor, up: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `forward`, those of experts that no token chose being zero.

    Returns:
        The gradient of x, [N, H], and those of the experts, if needed.
    """
    grad_rows, grad_product = grad_y.index_select(0, grouping.tokens), torch.empty_like(gate)
    for members, part in grouping.parts():
        torch.mm(grad_rows[part], _stacked(experts[2], members).t(), out=grad_product[part])
    grad_gate, grad_up, hidden = product_backward(gate, up, _scale(grad_product, grouping.factors))
    of_experts = None
    if needs_weights:
        rows = x.index_select(0, grouping.tokens)
        of_experts = _weight_gradients(rows, grad_rows, experts, grouping, grad_gate, grad_up, _scale(hidden, grouping.factors))
    for members, part in grouping.parts():
        torch.mm(grad_gate[part], _across(experts[0], members).t(), out=grad_rows[part])
        grad_rows[part].addmm_(grad_up[part], _across(experts[1], members).t())
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format).index_add_(0, grouping.tokens, grad_rows)
    return grad_x, of_experts


def _weight_gradients(
    rows: Tensor, grad_rows: Tensor, experts: Weights, grouping: Grouping, grad_gate: Tensor, grad_up: Tensor, hidden: Tensor
) -> Weights:
    gate, up, down = (torch.zeros_like(weight, memory_format=torch.contiguous_format) for weight in experts)
    width = gate.shape[2]
    for members, part in grouping.parts():
        for place, expert in enumerate(members):
            columns = slice(place * width, (place + 1) * width)
            gate[expert].addmm_(rows[part].t(), grad_gate[part, columns])
            up[expert].addmm_(rows[part].t(), grad_up[part, columns])
            down[expert].addmm_(hidden[part, columns].t(), grad_rows[part])
    return gate, up, down


def _scale(columns: Tensor, factors: Tensor) -> Tensor:
    """`columns` [R, g·W] times the factors [R, g], in place."""
    columns.view(*factors.shape, columns.shape[1] // factors.shape[1]).mul_(factors.unsqueeze(2))
    return columns


def _across(weights: Tensor, members: tuple[int, ...]) -> Tensor:
    """[H, g·W] of these experts."""
    return torch.cat([weights[expert] for expert in members], 1) if len(members) > 1 else weights[members[0]]


def _stacked(weights: Tensor, members: tuple[int, ...]) -> Tensor:
    """[g·W, H] of these experts."""
    return torch.cat([weights[expert] for expert in members], 0) if len(members) > 1 else weights[members[0]]
