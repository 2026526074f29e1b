"""A program that sets observables: it returns what the original returns, and is one module with the program."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import foldfx
from foldfx.runtime import ObservedProgram

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
NAMES = ("loss", "inner.router.logits")


class Router(nn.Module):
    logits: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.logits = x * 2
        return self.logits.softmax(-1)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.router(x)
        return result


class Model(nn.Module):
    loss: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(7, 4), Inner()
        self.register_buffer("calls", torch.zeros(()))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.inner(self.embedding(ids))
        self.calls += 1
        self.loss = scores.mean()
        return scores


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def program(model: Model) -> GraphModule:
    return foldfx.capture(model, (IDS,), observables=NAMES).module


def test_it_returns_what_the_model_returns_and_sets_the_attributes(model: Model, program: GraphModule) -> None:
    module = ObservedProgram(program, NAMES)
    assert not hasattr(module, "loss")
    assert torch.equal(module(IDS), model(IDS))
    assert torch.equal(module.loss, model.loss)
    assert torch.equal(module.get_submodule("inner.router").logits, model.inner.router.logits)
    assert torch.equal(module.inner.router.logits, model.inner.router.logits)
    module(IDS[:, :2])
    assert module.inner.router.logits.shape == (2, 2, 4)


def test_state_graph_mode_and_hooks_are_the_programs(model: Model, program: GraphModule) -> None:
    module = ObservedProgram(program, NAMES)
    assert module.state_dict().keys() == model.state_dict().keys()
    assert module.graph is program.graph
    assert module.code == program.code
    module.double()
    assert program.get_parameter("embedding.weight").dtype == torch.float64
    module.train()
    assert program.training
    assert module.get_submodule("inner.router").training
    module.eval()
    seen: list[str] = []
    module.register_forward_hook(lambda *_: seen.append("called"))
    module(IDS)
    assert seen == ["called"]


def test_gradients_reach_the_weights_through_an_attribute(model: Model, program: GraphModule) -> None:
    module = ObservedProgram(program, NAMES)
    module(IDS)
    module.inner.router.logits.square().sum().backward()
    (found,) = [parameter.grad for parameter in module.parameters()]
    assert found is not None
    model.zero_grad()
    model(IDS)
    model.inner.router.logits.square().sum().backward()
    assert model.embedding.weight.grad is not None
    assert torch.allclose(found, model.embedding.weight.grad)
    with torch.no_grad():
        module(IDS)
    assert not module.loss.requires_grad


def test_a_copy_is_independent(program: GraphModule) -> None:
    module = ObservedProgram(program, NAMES)
    twin = copy.deepcopy(module)
    assert isinstance(twin, ObservedProgram)
    assert torch.equal(twin(IDS), module(IDS))
    twin(IDS[:1])
    assert twin.inner.router.logits.shape == (1, 3, 4)
    assert module.inner.router.logits.shape == (2, 3, 4)
    with torch.no_grad():
        twin.get_parameter("embedding.weight").zero_()
    assert program.get_parameter("embedding.weight").any()


def test_setting_an_attribute_registers_nothing(program: GraphModule) -> None:
    module = ObservedProgram(program, NAMES)
    before = list(module.state_dict())
    module(IDS)
    assert list(module.state_dict()) == before
