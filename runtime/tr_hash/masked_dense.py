"""All experts for all tokens, with a multiplier for each token and expert, 0 where it is not chosen.

Because route weights are scalars behind the down projection, a layer is one dense SwiGLU of width S + E·W with a
multiplier on each column. E/K times the multiplications of the chosen experts, but no sort and no host synchronisation.
Columns lie side by side, the shared ones first. A column that is not chosen is set to zero, so that an overflow in it
does not reach the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .swiglu import Weights, product, product_backward


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


def forward(
    x: Tensor,
    shared: Weights | None,
    experts: Weights,
    factors: Tensor,
    shared_scale: float,
    gate: Tensor,
    up: Tensor,
    *,
    keep: bool,
) -> Tensor:
    """shared_scale · S(x) + Σ_e factors[:, e] · (silu(x G_e) · (x U_e)) D_e.

    Args:
        x: [N, H].
        shared: gate and up [S, H], down [H, S]; None for no shared branch.
        experts: gate and up [E, H, W], down [E, W, H].
        factors: [N, E], from `multipliers`.
        gate, up: [N, S + E·W], written with the pre-activations.
        keep: leave them so, for `backward`.

    Returns:
        [N, H].
    """
    number, _, width = experts[0].shape
    each, split = x.unsqueeze(0).expand(number, -1, -1), gate.shape[1] - number * width
    for place, into in enumerate((gate, up)):
        if shared is not None:
            torch.mm(x, shared[place].t(), out=into[:, :split])
        torch.bmm(each, experts[place], out=_routed(into, experts).transpose(0, 1))
    hidden = product(gate, up, keep=keep)
    _scale(_routed(hidden, experts), factors)
    down = experts[2].reshape(number * width, -1)
    if shared is None:
        return hidden @ down
    y = functional.linear(hidden[:, :split], shared[2])
    if shared_scale != 1:
        y.mul_(shared_scale)
    return y.addmm_(hidden[:, split:], down)


def backward(
    grad_y: Tensor,
    x: Tensor,
    shared: Weights | None,
    experts: Weights,
    factors: Tensor,
    shared_scale: float,
    gate: Tensor,
    up: Tensor,
    *,
    needs_experts: bool,
    needs_shared: bool,
) -> tuple[Tensor, Weights | None, Weights | None]:
    """Gradients of `forward`.

    Returns:
        The gradient of x, [N, H], and those of the experts and of the shared weights, where needed.
    """
    number, _, width = experts[0].shape
    split = gate.shape[1] - number * width
    grad_shared = grad_y if shared_scale == 1 else grad_y * shared_scale
    grad_hidden = torch.empty_like(gate)
    if shared is not None:
        torch.mm(grad_shared, shared[2], out=grad_hidden[:, :split])
    torch.mm(grad_y, experts[2].reshape(number * width, -1).t(), out=grad_hidden[:, split:])
    _scale(_routed(grad_hidden, experts), factors)
    grad_gate, grad_up, hidden = product_backward(gate, up, grad_hidden)
    unchosen = factors.logical_not().unsqueeze(2)
    grads = [_routed(grad, experts).masked_fill_(unchosen, 0).transpose(0, 1) for grad in (grad_gate, grad_up)]
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
    if shared is not None:
        grad_x.addmm_(grad_gate[:, :split], shared[0]).addmm_(grad_up[:, :split], shared[1])
    for grad, weight in zip(grads, experts, strict=False):
        for expert in range(number):
            grad_x.addmm_(grad[expert], weight[expert].t())
    of_experts = of_shared = None
    if needs_experts:
        rows = x.t().unsqueeze(0).expand(number, -1, -1)
        chosen = _scale(_routed(hidden, experts), factors)
        down = torch.bmm(chosen.permute(1, 2, 0), grad_y.unsqueeze(0).expand(number, -1, -1))
        of_experts = torch.bmm(rows, grads[0]), torch.bmm(rows, grads[1]), down
    if needs_shared and shared is not None:
        of_shared = grad_gate[:, :split].t() @ x, grad_up[:, :split].t() @ x, grad_shared.t() @ hidden[:, :split]
    return grad_x, of_experts, of_shared


def _routed(columns: Tensor, experts: Weights) -> Tensor:
    """The experts' columns of [N, S + E·W], as [N, E, W]."""
    number, _, width = experts[0].shape
    return columns[:, columns.shape[1] - number * width :].view(len(columns), number, width)


def _scale(columns: Tensor, factors: Tensor) -> Tensor:
    """`columns` [N, E, W] times the factors, in place; exactly 0 where the factor is."""
    return columns.mul_(factors.unsqueeze(2)).masked_fill_(factors.logical_not().unsqueeze(2), 0)
