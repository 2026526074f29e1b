"""The SwiGLU unit, silu(gate) · up, and the branch that every token passes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

Weights = tuple[Tensor, Tensor, Tensor]
"""Gate, up and down."""


def activated(gate: Tensor, *, keep: bool) -> Tensor:
    """silu(gate); without `keep` in the memory of `gate`. Times up, it is the product of the unit."""
    return functional.silu(gate, inplace=not keep)


def product_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the backward of silu(gate) · up needs, from what went in.

    Returns:
        The gradients of `gate` and `up`, and the product itself.
    """
    activated = functional.silu(gate)
    return torch.ops.aten.silu_backward(grad * up, gate), grad * activated, activated.mul_(up)


def shared_forward(x: Tensor, weights: Weights, *, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The branch of all tokens: (silu(x Gᵀ) · (x Uᵀ)) Dᵀ.

    Args:
        x: [N, H].
        weights: gate and up [S, H], down [H, S], as in `nn.Linear`.
        keep: leave the pre-activations as they are, for `shared_backward`.

    Returns:
        [N, H], and the pre-activations of gate and up, both [N, S].
    """
    gate = functional.linear(x, weights[0])
    active = activated(gate, keep=keep)  # while the cache holds it
    up = functional.linear(x, weights[1])
    return functional.linear(active.mul_(up), weights[2]), gate, up


def shared_by_columns(x: Tensor, weights: Weights) -> Tensor:
    """What `shared_forward` computes, tokens being the columns of every pre-activation: (silu(G xᵀ) · (U xᵀ))ᵀ Dᵀ."""
    active = activated(weights[0] @ x.t(), keep=False)
    return active.mul_(weights[1] @ x.t()).t() @ weights[2].t()


def shared_backward(
    grad_y: Tensor, x: Tensor, weights: Weights, gate: Tensor, up: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `shared_forward`.

    Returns:
        The gradient of x, [N, H], and those of the weights, if needed.
    """
    grad_gate, grad_up, hidden = product_backward(gate, up, grad_y @ weights[2])
    grad_x = torch.addmm(grad_gate @ weights[0], grad_up, weights[1])
    if not needs_weights:
        return grad_x, None
    return grad_x, (grad_gate.t() @ x, grad_up.t() @ x, grad_y.t() @ hidden)
