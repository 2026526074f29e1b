"""The SwiGLU unit, silu(gate) · up, and the branch that every token passes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

PAGE = 4096
CACHE_LINE = 64

Weights = tuple[Tensor, Tensor, Tensor]
"""Gate, up and down."""


def product(gate: Tensor, up: Tensor, *, keep: bool) -> Tensor:
    """silu(gate) · up, elementwise; without `keep` the result takes the memory of `gate`."""
    return functional.silu(gate, inplace=not keep).mul_(up)


def product_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the backward of `product` needs, from what went in.

    Returns:
        The gradients of `gate` and `up`, and the product itself.
    """
    activated = functional.silu(gate)
    return torch.ops.aten.silu_backward(grad * up, gate), grad * activated, activated.mul_(up)


def padded_width(width: int, itemsize: int) -> int:
    """Columns to allocate for rows of `width`: rows a multiple of a page apart compete for the same cache sets."""
    return width + CACHE_LINE // itemsize if width and width * itemsize % PAGE == 0 else width


def shared_forward(x: Tensor, weights: Weights, gate: Tensor, up: Tensor, *, keep: bool) -> Tensor:
    """The branch of all tokens: (silu(x Gᵀ) · (x Uᵀ)) Dᵀ.

    Args:
        x: [N, H].
        weights: gate and up [S, H], down [H, S], as in `nn.Linear`.
        gate, up: [N, S or more]; the first S columns are written with the pre-activations.
        keep: leave them so, for `shared_backward`.

    Returns:
        [N, H].
    """
    own = [torch.mm(x, weight.t(), out=into[:, : len(weight)]) for weight, into in zip(weights, (gate, up), strict=False)]
    return functional.linear(product(own[0], own[1], keep=keep), weights[2])


def shared_backward(
    grad_y: Tensor, x: Tensor, weights: Weights, gate: Tensor, up: Tensor, *, needs_weights: bool
) -> tuple[Tensor, Weights | None]:
    """Gradients of `shared_forward`.

    Returns:
        The gradient of x, [N, H], and those of the weights, if needed.
    """
    width = len(weights[0])
    grad_gate, grad_up, hidden = product_backward(gate[:, :width], up[:, :width], grad_y @ weights[2])
    grad_x = torch.addmm(grad_gate @ weights[0], grad_up, weights[1])
    if not needs_weights:
        return grad_x, None
    return grad_x, (grad_gate.t() @ x, grad_up.t() @ x, grad_y.t() @ hidden)
