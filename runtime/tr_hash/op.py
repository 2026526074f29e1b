"""`foldfx::tr_hash_mlp`: the semantic operation of a TR-Hash layer, one node in every graph above autograd.

Where a gradient is needed, autograd splits it into `tr_hash_mlp_keeping`, which also returns the pre-activations, and
`tr_hash_mlp_backward`. Only pre-activations are kept: less than half of what a dense SwiGLU of the active width saves.
Forward mode and the transforms of `torch.func` differentiate the form for graphs instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ..._torch import below_autograd, within_transform
from .call import Call
from .reference import backward, forward
from .traceable import traceable_forward

_OPERANDS = (
    "Tensor hidden, Tensor token_ids, Tensor route_table, Tensor expert_gate, Tensor expert_up, Tensor expert_down, "
    "Tensor? shared_gate, Tensor? shared_up, Tensor? shared_down"
)
_SETTINGS = "float[] route_weights, float shared_scale, float routed_scale, str out_of_range, str lowering"
_KEPT = "Tensor shared_gate_kept, Tensor shared_up_kept, Tensor expert_gate_kept, Tensor expert_up_kept"

_LIBRARY: Any = torch.library.Library("foldfx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"tr_hash_mlp({_OPERANDS}, {_SETTINGS}) -> Tensor")
_LIBRARY.define(f"tr_hash_mlp_keeping({_OPERANDS}, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"tr_hash_mlp_backward(Tensor grad, {_OPERANDS}, {_KEPT}, {_SETTINGS}, bool needs_experts, bool needs_shared) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)

TR_HASH_MLP: Any = torch.ops.foldfx.tr_hash_mlp.default
_KEEPING: Any = torch.ops.foldfx.tr_hash_mlp_keeping.default
_BACKWARD: Any = torch.ops.foldfx.tr_hash_mlp_backward.default


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        call = Call(*arguments)
        call = call._replace(lowering=call.resolved())
        found: tuple[Tensor, ...] = _KEEPING(*call)
        ctx.save_for_backward(*call[:9], *found[1:])
        ctx.settings = call[9:]
        return found[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled() or _has_tangent(grad):
            raise RuntimeError(
                "tr_hash_mlp has no second derivative in torch.autograd; drop create_graph=True, or take the transforms of "
                "torch.func, which differentiate it any number of times"
            )
        needs_experts, needs_shared = any(ctx.needs_input_grad[3:6]), any(ctx.needs_input_grad[6:9])
        found = _BACKWARD(grad, *ctx.saved_tensors, *ctx.settings, needs_experts, needs_shared)
        grads = [found[0], None, None, *found[1:]]
        return *(grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad, strict=False)), *[None] * 5


def _autograd(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    operands = [each for each in call if isinstance(each, Tensor)]
    if within_transform() or any(_has_tangent(each) for each in operands):
        call.check()
        return traceable_forward(call)
    if torch.is_grad_enabled() and any(each.requires_grad for each in operands):
        return _Layer.apply(*call)  # type: ignore[no-untyped-call,no-any-return]
    with below_autograd():
        return TR_HASH_MLP(*call)  # type: ignore[no-any-return]


def _has_tangent(tensor: Tensor) -> bool:
    return unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _autocast(*arguments: Any) -> Tensor:
    """Computed in autocast's dtype, as a whole; float64 stays, as autocast leaves it everywhere."""
    call = Call(*arguments)
    device_type = call.hidden.device.type
    dtype = torch.get_autocast_dtype(device_type)

    def cast(each: Any) -> Any:
        lower = isinstance(each, Tensor) and each.is_floating_point() and each.dtype != torch.float64
        return each.to(dtype) if lower else each

    with torch.autocast(device_type, enabled=False):
        return TR_HASH_MLP(*map(cast, call)).to(call.hidden.dtype)  # type: ignore[no-any-return]


def _compute(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    call.check()
    return forward(call, keep=False)[0]


def _compute_keeping(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    call.check()
    return forward(call, keep=True)


def _compute_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    operands, kept, settings, needs = arguments[:9], arguments[9:13], arguments[13:-2], arguments[-2:]
    return backward(grad, Call(*operands, *settings), kept, needs_experts=needs[0], needs_shared=needs[1])


def _fake(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    call.check()
    return call.hidden.new_empty(call.hidden.shape)


def _fake_keeping(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    shared, experts = (call.hidden.new_empty(shape) for shape in call.kept_shapes())
    return _fake(*arguments), shared, torch.empty_like(shared), experts, torch.empty_like(experts)


def _fake_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    call, (needs_experts, needs_shared) = Call(*arguments[:9], *arguments[13:-2]), arguments[-2:]

    def like(weight: Tensor | None, needed: bool) -> Tensor:
        return call.hidden.new_empty(weight.shape if needed and weight is not None else (0,))

    experts = [like(weight, needs_experts) for weight in call.experts]
    shared = [like(weight, needs_shared) for weight in (call.shared_gate, call.shared_up, call.shared_down)]
    return call.hidden.new_empty(call.hidden.shape), *experts, *shared


_LIBRARY.impl("tr_hash_mlp", _autograd, "Autograd")
for _device in ("CPU", "CUDA", "XPU", "MPS"):
    _LIBRARY.impl("tr_hash_mlp", _autocast, f"Autocast{_device}")
for _name, _kernel, _meta in (
    ("tr_hash_mlp", _compute, _fake),
    ("tr_hash_mlp_keeping", _compute_keeping, _fake_keeping),
    ("tr_hash_mlp_backward", _compute_backward, _fake_backward),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"foldfx::{_name}", _meta, lib=_LIBRARY)
