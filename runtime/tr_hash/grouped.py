"""Chosen experts only: rows are gathered once, sorted by group, multiplied group by group and added back once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .grouping import Grouping
from .swiglu import Weights, activated, product_backward


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
    gates, ups, downs = (weight.unbind() for weight in experts)
    rows = x.index_select(0, grouping.tokens)
    for members, (part, of_gate, of_up) in grouping.parts(rows, gate, up):
        torch.mm(part, _joined(gates, members, 1), out=of_gate)
        torch.mm(part, _joined(ups, members, 1), out=of_up)
    hidden = _scale(activated(gate, keep=keep).mul_(up), grouping.factors)
    for members, (part, columns) in grouping.parts(rows, hidden):
        torch.mm(columns, _joined(downs, members, 0), out=part)
    y.index_add_(0, grouping.tokens, rows)


def backward(
    grad_y: Tensor, x: Tensor, experts: Weights, grouping: Grouping, gate: Tensor, up: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `forward`, those of experts that no token chose being zero.

    Returns:
        The gradient of x, [N, H], and those of the experts, if needed.
    """
    gates, ups, downs = (weight.unbind() for weight in experts)
    grad_rows, grad_product = grad_y.index_select(0, grouping.tokens), torch.empty_like(gate)
    for members, (part, columns) in grouping.parts(grad_rows, grad_product):
        torch.mm(part, _joined(downs, members, 0).t(), out=columns)
    grad_gate, grad_up, hidden = product_backward(gate, up, _scale(grad_product, grouping.factors))
    of_experts = None
    if needs_weights:
        rows = x.index_select(0, grouping.tokens)
        of_experts = _weight_gradients(rows, grad_rows, experts, grouping, grad_gate, grad_up, _scale(hidden, grouping.factors))
    for members, (part, of_gate, of_up) in grouping.parts(grad_rows, grad_gate, grad_up):
        torch.mm(of_gate, _joined(gates, members, 1).t(), out=part)
        part.addmm_(of_up, _joined(ups, members, 1).t())
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format).index_add_(0, grouping.tokens, grad_rows)
    return grad_x, of_experts


def _weight_gradients(
    rows: Tensor, grad_rows: Tensor, experts: Weights, grouping: Grouping, grad_gate: Tensor, grad_up: Tensor, hidden: Tensor
) -> Weights:
    gate, up, down = (torch.zeros_like(weight, memory_format=torch.contiguous_format) for weight in experts)
    width = gate.shape[2]
    for members, (part, grad_part, *of_units) in grouping.parts(rows, grad_rows, grad_gate, grad_up, hidden):
        for place, expert in enumerate(members):
            of_gate, of_up, columns = (each[:, place * width : (place + 1) * width] for each in of_units)
            gate[expert].addmm_(part.t(), of_gate)
            up[expert].addmm_(part.t(), of_up)
            down[expert].addmm_(columns.t(), grad_part)
    return gate, up, down


def _scale(columns: Tensor, factors: Tensor) -> Tensor:
    """`columns` [R, g·W] times the factors [R, g], in place."""
    columns.view(*factors.shape, columns.shape[1] // factors.shape[1]).mul_(factors.unsqueeze(2))
    return columns


def _joined(weights: Sequence[Tensor], members: tuple[int, ...], dim: int) -> Tensor:
    """The matrices of these experts as one, side by side (dim 1) or one below the other (dim 0)."""
    return torch.cat([weights[expert] for expert in members], dim) if len(members) > 1 else weights[members[0]]
