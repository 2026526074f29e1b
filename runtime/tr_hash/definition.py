"""The routed branch written as its definition, differentiable in everything, for checking faster forms against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def reference_topk_swiglu(
    flat_x: Tensor,
    routes: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    route_weights: Tensor,
    *,
    activation: Callable[[Tensor], Tensor] = functional.silu,
    intermediate_transform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Σ_j weights[j, n] · E[routes[j, n]](x[n]), with E_e(x) = transform(activation(x gate_e) · (x up_e)) down_e.

    Each expert sees the rows that chose it, and no others. A row that chose it twice gets the sum of both weights.

    Args:
        flat_x: [N, H].
        routes: integers [K, N], 0..E-1.
        gate, up: [E, H, W].
        down: [E, W, H].
        route_weights: [K, N].
        activation, intermediate_transform: functions of [n, W] that keep the shape.

    Returns:
        [N, H], in the dtype of flat_x.

    Raises:
        ValueError: ranks or shapes that do not fit, named.
        IndexError: a route outside 0..E-1.
    """
    _check_shapes(flat_x, routes, gate, up, down, route_weights)
    if routes.numel() and not 0 <= int(routes.min()) <= int(routes.max()) < len(gate):
        raise IndexError(f"routes reach from {int(routes.min())} to {int(routes.max())}, with experts 0..{len(gate) - 1}")
    y = torch.zeros_like(flat_x)
    for expert in range(len(gate)):
        chosen = routes == expert
        rows = chosen.any(0).nonzero().squeeze(1)
        weights = (route_weights * chosen).sum(0)[rows].unsqueeze(1)
        x = flat_x[rows]
        hidden = activation(x @ gate[expert]) * (x @ up[expert])
        if intermediate_transform is not None:
            hidden = intermediate_transform(hidden)
        y = y.index_add(0, rows, ((hidden @ down[expert]) * weights).to(y.dtype))
    return y


def _check_shapes(flat_x: Tensor, routes: Tensor, gate: Tensor, up: Tensor, down: Tensor, route_weights: Tensor) -> None:
    if flat_x.dim() != 2 or gate.dim() != 3 or gate.shape[1] != flat_x.shape[1]:
        raise ValueError(f"flat_x must be [N, H] and gate [E, H, W], got {tuple(flat_x.shape)} and {tuple(gate.shape)}")
    experts, width, inner = gate.shape
    expected = {
        "up": (up, (experts, width, inner)),
        "down": (down, (experts, inner, width)),
        "route_weights": (route_weights, tuple(routes.shape)),
    }
    for name, (found, shape) in expected.items():
        if tuple(found.shape) != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(found.shape)}")
    if routes.dim() != 2 or routes.shape[1] != len(flat_x):
        raise ValueError(f"routes must be [K, {len(flat_x)}], got {tuple(routes.shape)}")
