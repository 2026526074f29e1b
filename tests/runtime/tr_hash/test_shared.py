"""The shared branch where its modules are more than their weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from foldfx.runtime.tr_hash import TRHashEngine

from .definition import HIDDEN, SHARED, assert_near, engine, inputs

NAMES = ("shared_gate", "shared_up", "shared_down")


class Adapter(nn.Module):
    """A low-rank adapter as peft has it: the base layer's weight shows through, forward adds a product."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features).to(base.weight.dtype))
        self.up = nn.Parameter(torch.randn(base.out_features, 2).to(base.weight.dtype))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def merged(self) -> Tensor:
        return self.base.weight + self.up @ self.down

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + functional.linear(functional.linear(x, self.down), self.up)


def adapted(name: str) -> tuple[TRHashEngine, TRHashEngine]:
    """An engine with an adapter, and a plain one with its weight merged."""
    layer = engine(torch.float64, shared_output_scale=0.5)
    plain = copy.deepcopy(layer)
    adapter = Adapter(getattr(layer, name))
    setattr(layer, name, adapter)
    with torch.no_grad():
        getattr(plain, name).weight.copy_(adapter.merged)
    return layer, plain


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_counts_and_learns(name: str) -> None:
    layer, plain = adapted(name)
    hidden, ids = inputs(torch.float64)
    output, expected = layer(hidden, ids), plain(hidden, ids)
    assert_near("output", output, expected, torch.float64)
    output.square().sum().backward()
    expected.square().sum().backward()
    adapter = getattr(layer, name)
    assert_near("grad of the adapter", adapter.up.grad, getattr(plain, name).weight.grad @ adapter.down.T, torch.float64)
    assert_near("grad of the experts", layer.expert_up.grad, plain.expert_up.grad, torch.float64)


def test_an_adapter_in_captured_graphs_and_under_autocast() -> None:
    layer, _ = adapted("shared_up")
    layer.float()
    call = inputs(torch.float32)
    expected = layer(*call)
    torch._dynamo.reset()
    for other in (
        torch.fx.symbolic_trace(layer),
        torch.export.export(layer, call).module(),
        torch.compile(layer, backend="eager", fullgraph=True),
    ):
        assert torch.equal(other(*call), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(*call)
    assert output.dtype == torch.float32
    assert 0 < float((output - expected).norm() / expected.norm()) < 2e-2


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_run_until_they_are_removed(register: str) -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    seen: list[nn.Module] = []
    handle = getattr(layer.shared_up, register)(lambda module, *_: seen.append(module))
    for _ in range(2):
        layer(hidden.requires_grad_(), ids).sum().backward()
        handle.remove()
    assert seen == [layer.shared_up]


def test_a_bias_counts() -> None:
    layer = engine(torch.float64)
    hidden, ids = inputs(torch.float64)
    before = layer(hidden, ids)
    assert layer.shared_down is not None
    layer.shared_down.bias = nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64))
    assert_near("output", layer(hidden, ids), before + 1, torch.float64)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_what_is_its_weight_stays_in_the_one_node() -> None:
    """Plain modules, one with a parametrised weight, and hooks that no call runs."""
    layer = engine()
    assert layer.shared_gate is not None
    parametrize.register_parametrization(layer.shared_gate, "weight", Doubled())
    layer.shared_gate.register_state_dict_pre_hook(lambda *_: None)
    call = inputs(torch.float32)
    exported = torch.export.export(layer, call)
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert calls == ["aten.mul.Tensor", "foldfx.tr_hash_mlp.default"]
    plain = engine()
    plain.load_state_dict(
        {name: entry for name, entry in layer.state_dict().items() if "shared_gate" not in name}, strict=False
    )
    assert plain.shared_gate is not None
    assert layer.shared_gate.weight.shape == (SHARED, HIDDEN)
    with torch.no_grad():
        plain.shared_gate.weight.copy_(layer.shared_gate.weight)
    assert torch.equal(layer(*call), plain(*call))
