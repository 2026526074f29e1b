"""The operation computed by plain PyTorch, forward and backward, by whichever lowering the call names or gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from . import grouped, masked_dense
from .call import Call
from .grouping import Group, by_expert, by_pair
from .routing import routes_of
from .swiglu import shared_backward, shared_forward

_GROUPINGS: dict[str, Callable[[Tensor, Sequence[float], int, torch.dtype], list[Group]]] = {
    "by_expert": by_expert,
    "by_pair": by_pair,
}


def forward(call: Call, *, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer.

    Args:
        call: checked.
        keep: leave pre-activations as they are, for `backward`.

    Returns:
        The output, of hidden's shape; then, for `backward`, pre-activations of gate and up of the columns of all tokens, and
        of gate and up of groups, shaped as `Call.kept_shapes` tells.

    Raises:
        IndexError: an id outside the vocabulary, under `out_of_range="error"`.
    """
    call = call._replace(lowering=call.resolved())
    with _without_autocast(call.hidden):
        x, routes = _flat(call.hidden), _routes(call)
        of_all, of_groups = call.kept_shapes()
        gate, up = x.new_empty(of_all), x.new_empty(of_all)
        group_gate, group_up = (x.new_empty(of_groups if keep else (0, 0)) for _ in range(2))
        if call.lowering not in _GROUPINGS:
            factors = masked_dense.multipliers(routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            y = masked_dense.forward(x, call.shared, call.experts, factors, call.shared_scale, gate, up, keep=keep)
        else:
            if call.shared is None:
                y = torch.zeros_like(x, memory_format=torch.contiguous_format)
            else:
                y = shared_forward(x, call.shared, gate, up, keep=keep)
                if call.shared_scale != 1:
                    y.mul_(call.shared_scale)
            grouped.forward(x, call.experts, _groups(call, routes, x), y, (group_gate, group_up) if keep else None)
    return y.view(call.hidden.shape), gate, up, group_gate, group_up


def backward(
    grad: Tensor, call: Call, kept: Sequence[Tensor], *, needs_experts: bool, needs_shared: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `forward`.

    Args:
        grad: of the output.
        call: the same as forward's, with the lowering named.
        kept: what forward returned behind the output.

    Returns:
        Gradients of hidden, of the experts' gate, up and down, and of the shared gate, up and down; empty tensors for
        weights that are not there or not asked for.
    """
    with _without_autocast(call.hidden):
        x, grad_y, routes = _flat(call.hidden), _flat(grad), _routes(call)
        of_shared = None
        if call.lowering not in _GROUPINGS:
            factors = masked_dense.multipliers(routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            grad_x, of_experts, of_shared = masked_dense.backward(
                grad_y,
                x,
                call.shared,
                call.experts,
                factors,
                call.shared_scale,
                kept[0],
                kept[1],
                needs_experts=needs_experts,
                needs_shared=needs_shared,
            )
        else:
            groups = _groups(call, routes, x)
            grad_x, of_experts = grouped.backward(
                grad_y, x, call.experts, groups, (kept[2], kept[3]), needs_weights=needs_experts
            )
            if call.shared is not None:
                scaled = grad_y if call.shared_scale == 1 else grad_y * call.shared_scale
                part, of_shared = shared_backward(scaled, x, call.shared, kept[0], kept[1], needs_weights=needs_shared)
                grad_x.add_(part)
        none = [x.new_empty(0) for _ in range(6)]
        weights = [*(of_experts or none[:3]), *(of_shared or none[3:])]
    return grad_x.view(call.hidden.shape), weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]


def _groups(call: Call, routes: Tensor, x: Tensor) -> list[Group]:
    return _GROUPINGS[call.lowering](routes, call.factors, len(call.expert_gate), _factor_dtype(x))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _routes(call: Call) -> Tensor:
    return routes_of(call.route_table, call.token_ids.reshape(-1), call.out_of_range)


def _factor_dtype(x: Tensor) -> torch.dtype:
    """Route weights are never rounded to half precision."""
    return torch.promote_types(torch.float32, x.dtype)


def _without_autocast(hidden: Tensor) -> AbstractContextManager[object]:
    """The operands have one dtype already, and autocast would give parts of the sum another."""
    device_type = hidden.device.type
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
