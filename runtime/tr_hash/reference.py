"""The operation computed by plain PyTorch, forward and backward, by whichever lowering the call names or gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
        keep: also return what `backward` needs.

    Returns:
        The output, of hidden's shape; then the pre-activations of the shared gate and up and of the experts' gate and up,
        whose shapes `Call.kept_shapes` tells (empty without `keep`).

    Raises:
        IndexError: an id outside the vocabulary, under `out_of_range="error"`.
    """
    return _forward(call._replace(lowering=call.resolved()), _routes(call), keep=keep)


def traceable_forward(call: Call) -> Tensor:
    """The layer in the masked-dense form: no shape depends on values, and ids are clamped or, outside, refused by the read.

    Args:
        call: checked.

    Raises:
        IndexError: an id outside the vocabulary, under `out_of_range="error"`; raised by the read of the table.
    """
    ids = call.token_ids.reshape(-1).to(torch.int64)
    if call.out_of_range == "clamp":
        ids = ids.clamp(0, call.route_table.shape[1] - 1)
    routes = torch.embedding(call.route_table.t(), ids).t().to(torch.int64)
    return _forward(call._replace(lowering="masked_dense"), routes, keep=False)[0]


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
            groups = _GROUPINGS[call.lowering](routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            grad_x, of_experts = grouped.backward(
                grad_y, x, call.experts, groups, (kept[2], kept[3]), needs_weights=needs_experts
            )
        else:
            factors = masked_dense.multipliers(routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            grad_x, of_experts = masked_dense.backward(
                grad_y, x, call.experts, factors, kept[2], kept[3], needs_weights=needs_experts
            )
        if call.shared is not None:
            scaled = grad_y if call.shared_scale == 1 else grad_y * call.shared_scale
            part, of_shared = shared_backward(scaled, x, call.shared, kept[0], kept[1], needs_weights=needs_shared)
            grad_x.add_(part)
        none = [x.new_empty(0) for _ in range(6)]
        weights = [*(of_experts or none[:3]), *(of_shared or none[3:])]
    return grad_x.view(call.hidden.shape), weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]


def _forward(call: Call, routes: Tensor, *, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with _without_autocast(call.hidden):
        x = _flat(call.hidden)
        shared = [x.new_empty((0, 0)), x.new_empty((0, 0))]
        if call.shared is None:
            y = torch.zeros_like(x, memory_format=torch.contiguous_format)
        else:
            y, *shared = shared_forward(x, call.shared, keep=keep)
            if call.shared_scale != 1:
                y.mul_(call.shared_scale)
        kept = [x.new_empty(call.kept_shapes()[1] if keep else (0,)) for _ in range(2)] if call.lowering in _GROUPINGS else []
        if call.lowering in _GROUPINGS:
            groups = _GROUPINGS[call.lowering](routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            grouped.forward(x, call.experts, groups, y, (kept[0], kept[1]) if keep else None)
        else:
            factors = masked_dense.multipliers(routes, call.factors, len(call.expert_gate), _factor_dtype(x))
            kept = list(masked_dense.forward(x, call.experts, factors, y, keep=keep))
    return y.view(call.hidden.shape), shared[0], shared[1], kept[0], kept[1]


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _routes(call: Call) -> Tensor:
    return routes_of(call.route_table, call.token_ids.reshape(-1), call.out_of_range)


def _factor_dtype(x: Tensor) -> torch.dtype:
    """Route weights are never rounded to half precision."""
    return torch.promote_types(torch.float32, x.dtype)


@contextmanager
def _without_autocast(hidden: Tensor) -> Iterator[None]:
    """The operands have one dtype already, and autocast would give parts of the sum another."""
    with torch.autocast(hidden.device.type, enabled=False):
        yield
