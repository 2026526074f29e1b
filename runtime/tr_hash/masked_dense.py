"""All experts for all tokens, with a multiplier for each token and expert, 0 where it is not chosen.

Because route weights are scalars behind the down projection, a layer is one dense SwiGLU of width S + E·W with a
multiplier on each column. E/K times the multiplications of the chosen experts, but no sort and no host synchronisation.
A column that is not chosen is set to zero, so that an overflow in it does not reach the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .swiglu import Weights, activated, product_backward


def multipliers(routes: Tensor, weights: Sequence[float], num_experts: int, dtype: torch.dtype) -> Tensor:
    """Σ_j weights[j] · [routes[j, n] = e] as [N, E].

    Args:
        routes: int64 [K, N].
        dtype: float32 or float64.
    """
    tokens = routes.shape[1]
    factors = torch.zeros(tokens, num_experts, dtype=dtype, device=routes.device)
    if min(weights) == max(weights):
        return factors.scatter_add_(1, routes.t(), factors.new_full((tokens, len(weights)), weights[0]))
    columns = [factors.new_full((tokens, 1), weight) for weight in weights]
    return factors.scatter_add_(1, routes.t(), torch.cat(columns, 1))


def forward(x: Tensor, experts: Weights, factors: Tensor, y: Tensor, *, keep: bool) -> tuple[Tensor, Tensor]:
    """Add Σ_e factors[:, e] · (silu(x G_e) · (x U_e)) D_e to `y`.

    Args:
        x: [N, H].
        experts: gate and up [E, H, W], down [E, W, H].
        factors: [N, E], from `multipliers`.
        y: [N, H], written.
        keep: leave the pre-activations as they are, for `backward`.

    Returns:
        The pre-activations of gate and up, both [E, N, W].
    """
    each = x.unsqueeze(0).expand(len(experts[0]), -1, -1)
    gate, up = torch.bmm(each, experts[0]), torch.bmm(each, experts[1])
    hidden = _scale(activated(gate, keep=keep).mul_(up), factors)
    for columns, down in zip(hidden.unbind(), experts[2].unbind(), strict=True):
        y.addmm_(columns, down)
    return gate, up


def backward(
    grad_y: Tensor, x: Tensor, experts: Weights, factors: Tensor, gate: Tensor, up: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `forward`.

    Returns:
        The gradient of x, [N, H], and those of the experts, if needed.
    """
    each = grad_y.unsqueeze(0).expand(len(experts[2]), -1, -1)
    grad_product = _scale(torch.bmm(each, experts[2].transpose(1, 2)), factors)
    grad_gate, grad_up, hidden = product_backward(gate, up, grad_product)
    unchosen = factors.logical_not().t().unsqueeze(2)
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for grads, weights in ((grad_gate.masked_fill_(unchosen, 0), experts[0]), (grad_up.masked_fill_(unchosen, 0), experts[1])):
        for grad, weight in zip(grads.unbind(), weights.unbind(), strict=True):
            grad_x.addmm_(grad, weight.t())
    if not needs_weights:
        return grad_x, None
    rows = x.t().unsqueeze(0).expand(len(gate), -1, -1)
    down = torch.bmm(_scale(hidden, factors).transpose(1, 2), each)
    return grad_x, (torch.bmm(rows, grad_gate), torch.bmm(rows, grad_up), down)


def _scale(columns: Tensor, factors: Tensor) -> Tensor:
    """`columns` [E, N, W] times the factors, in place; exactly 0 where the factor is."""
    return columns.mul_(factors.t().unsqueeze(2)).masked_fill_(factors.logical_not().t().unsqueeze(2), 0)
