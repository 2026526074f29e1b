"""The operation computed by plain PyTorch, forward and backward, by whichever lowering the call names or gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from . import grouped, masked_dense
from .call import Call
from .choice import tokens_as_columns
from .grouping import Grouping, by_expert, by_pair
from .routing import routes_of
from .swiglu import shared_backward, shared_by_columns, shared_forward

_GROUPINGS: dict[str, Callable[[Tensor, Sequence[float], int, torch.dtype], Grouping]] = {
    "by_expert": by_expert,
    "by_pair": by_pair,
}


def forward(call: Call, *, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer.

    Args:
        call: checked.
        keep: leave pre-activations as they are, for `backward`.

    Returns:
        The output, of hidden's shape; then, for `backward`, pre-activations of the shared gate and up and of the experts'
        gate and up, shaped as `Call.kept_shapes` tells.

    Raises:
        IndexError: an id outside the vocabulary, under `out_of_range="error"`.
    """
    call = call._replace(lowering=call.resolved())
    with _without_autocast(call.hidden):
        x, routes = _flat(call.hidden), _routes(call)
        shared_gate, shared_up = _nothing(x)
        if call.shared is None:
            y = torch.zeros_like(x, memory_format=torch.contiguous_format)
        elif not keep and tokens_as_columns(len(x), x.dtype, x.device.type):
            y = shared_by_columns(x, call.shared)
        else:
            y, shared_gate, shared_up = shared_forward(x, call.shared, keep=keep)
        if call.shared is not None and call.shared_scale != 1:
            y.mul_(call.shared_scale)
        if call.lowering in _GROUPINGS:
            shape = call.kept_shapes()[1]
            gate, up = x.new_empty(shape), x.new_empty(shape)
            grouped.forward(x, call.experts, _grouping(call, routes, x), y, gate, up, keep=keep)
        else:
            gate, up = masked_dense.forward(x, call.experts, _factors(call, routes, x), y, keep=keep)
    # A view would be one that autograd refuses to have written in place.
    return torch.ops.aten._unsafe_view(y, call.hidden.shape), shared_gate, shared_up, gate, up


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
        of_experts = of_shared = None
        if call.lowering in _GROUPINGS:
            grad_x, of_experts = grouped.backward(
                grad_y, x, call.experts, _grouping(call, routes, x), kept[2], kept[3], needs_weights=needs_experts
            )
        else:
            grad_x, of_experts = masked_dense.backward(
                grad_y, x, call.experts, _factors(call, routes, x), kept[2], kept[3], needs_weights=needs_experts
            )
        if call.shared is not None:
            scaled = grad_y if call.shared_scale == 1 else grad_y * call.shared_scale
            part, of_shared = shared_backward(scaled, x, call.shared, kept[0], kept[1], needs_weights=needs_shared)
            grad_x.add_(part)
        none = [x.new_empty(0) for _ in range(6)]
        weights = [*(of_experts or none[:3]), *(of_shared or none[3:])]
    return grad_x.view(call.hidden.shape), weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]


def _factors(call: Call, routes: Tensor, x: Tensor) -> Tensor:
    return masked_dense.multipliers(routes, call.factors, len(call.expert_gate), _factor_dtype(x))


def _nothing(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty((0, 0)), x.new_empty((0, 0))


def _grouping(call: Call, routes: Tensor, x: Tensor) -> Grouping:
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
