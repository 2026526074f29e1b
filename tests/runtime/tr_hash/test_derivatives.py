"""What of autograd works on a layer's output: in-place edits, forward mode, the transforms of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vjp, vmap

from foldfx.runtime.tr_hash import TRHashEngine, reference_topk_swiglu
from foldfx.runtime.tr_hash.choice import LOWERINGS

from .definition import HIDDEN, VOCABULARY, assert_near, engine, inputs, run


@pytest.mark.parametrize("shared", [0, 10])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_output_can_be_changed_in_place(lowering: str, shared: int) -> None:
    """As that of nn.Linear can; the gradients are those of the same sum out of place."""
    layer = engine(torch.float64, shared_width=shared)
    hidden, ids = inputs(torch.float64)
    gradients = []
    for in_place in (True, False):
        layer.zero_grad()
        given = hidden.clone().requires_grad_()
        output = run(layer, given, ids, lowering)
        if in_place:
            output += given
        else:
            output = output + given
        output.square().sum().backward()
        gradients.append([given.grad, *(weight.grad for weight in layer.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_the_output_of_a_frozen_layer_can_be_changed_in_place() -> None:
    layer = engine().requires_grad_(False)
    hidden, ids = inputs(torch.float32)
    weight = torch.ones(HIDDEN, requires_grad=True)
    with torch.no_grad():
        output = layer(hidden, ids)
    output *= weight
    output.sum().backward()
    assert weight.grad is not None


def tangent_of(function: Callable[[Tensor], Tensor], x: Tensor, along: Tensor) -> Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, along))).tangent
    assert tangent is not None
    return tangent


@pytest.mark.parametrize("needs_grad", [True, False])
def test_forward_mode_is_the_transpose_of_reverse_mode(needs_grad: bool) -> None:
    """<u, J v> = <Jᵀ u, v>, whether or not weights or hidden states need gradients."""
    layer = engine(torch.float64, num_experts=8).requires_grad_(needs_grad)
    hidden, ids = inputs(torch.float64)
    along, cotangent = torch.randn_like(hidden), torch.randn_like(hidden)
    given = hidden.clone().requires_grad_()
    expected = (torch.autograd.grad(layer(given, ids), given, cotangent)[0] * along).sum()
    for x in (hidden, given):
        for tangent in (tangent_of(lambda x: layer(x, ids), x, along), jvp(lambda x: layer(x, ids), (x,), (along,))[1]):
            assert_near("tangent", (cotangent * tangent).sum(), expected, torch.float64)


def test_the_tangent_of_a_weight() -> None:
    layer = engine(torch.float64)
    hidden, ids = inputs(torch.float64)
    weight, along = layer.expert_down.detach(), torch.randn_like(layer.expert_down)

    def by_weight(value: Tensor) -> Tensor:
        return functional_call(layer, {"expert_down": value}, (hidden, ids))

    change = by_weight(weight + along) - by_weight(weight)  # the layer is linear in this weight
    assert_near("tangent", tangent_of(by_weight, weight, along), change.detach(), torch.float64)


def test_the_transforms_of_torch_func_have_the_gradients_of_backward() -> None:
    layer = engine(torch.float64)
    hidden, ids = inputs(torch.float64)
    layer(hidden, ids).square().sum().backward()
    state = {name: weight.detach() for name, weight in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, tokens: Tensor) -> Tensor:
        return functional_call(layer, weights, (x, tokens)).square().sum()

    found = grad(loss)(state, hidden, ids)
    pulled = vjp(lambda weights: loss(weights, hidden, ids), state)[1](torch.ones((), dtype=torch.float64))[0]
    of_samples = vmap(grad(loss), (None, 0, 0))(state, hidden.unsqueeze(1), ids.unsqueeze(1))
    for name, weight in layer.named_parameters():
        for each in (found[name], pulled[name], of_samples[name].sum(0)):
            assert_near(name, each, weight.grad, torch.float64)


def test_second_derivatives() -> None:
    """Those of `torch.func` are the reference's; torch.autograd has none, and says so instead of dropping them."""
    layer = engine(torch.float64, shared_width=0)
    hidden, ids = torch.randn(1, 1, HIDDEN, dtype=torch.float64), torch.tensor([[3]])
    weights = torch.tensor(layer.config.route_weights, dtype=torch.float64).unsqueeze(1)

    def reference(x: Tensor) -> Tensor:
        experts = layer.expert_gate, layer.expert_up, layer.expert_down
        return reference_topk_swiglu(x.reshape(1, HIDDEN), layer.route_table[:, 3:4].long(), *experts, weights).square().sum()

    found, expected = (
        hessian(lambda x: layer(x, ids).square().sum())(hidden),
        torch.autograd.functional.hessian(reference, hidden),
    )
    assert_near("second derivative", found, expected, torch.float64)
    given = hidden.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"no second derivative in torch\.autograd; drop create_graph=True"):
        torch.autograd.grad(layer(given, ids).sum(), given, create_graph=True)


def test_a_tangent_that_comes_back_is_not_dropped() -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    given, along = hidden.clone().requires_grad_(), torch.randn_like(hidden)
    with forward_ad.dual_level():
        output = layer(given, ids)
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(output, given, forward_ad.make_dual(along, along), retain_graph=True)
        assert torch.autograd.grad(output, given, along)[0].isfinite().all()


@pytest.mark.parametrize("place", ["grad", "jvp"])
def test_operands_are_checked_within_transforms(place: str) -> None:
    layer = engine(out_of_range="error")
    hidden, ids = inputs(torch.float32)

    def differentiate(layer: TRHashEngine, x: Tensor, tokens: Tensor) -> object:
        if place == "grad":
            return grad(lambda x: layer(x, tokens).sum())(x)
        return jvp(lambda x: layer(x, tokens), (x,), (x,))

    differentiate(layer, hidden, ids.clamp(0, VOCABULARY - 1))
    with pytest.raises(IndexError):
        differentiate(layer, hidden, ids)
    with pytest.raises(TypeError, match=r"hidden is torch\.float64"):
        differentiate(layer, hidden.double(), ids)
