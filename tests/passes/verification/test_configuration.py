"""What a module holds and is besides its registered tensors: every change is seen, and named by module path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foldfx.passes.verification.configuration import disturbances, held_tensors, plain_attributes


class Block(nn.Module):
    rate = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.norm, self.act = nn.LayerNorm(4), nn.ReLU()
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.plain, self.many = torch.ones(2), {"a": [torch.ones(1), (torch.zeros(1), 3)]}
        self.scales = (0.5, 2)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.act(self.norm(self.embedding(ids)) * self.mask)) * self.scales[0]


def test_every_tensor_is_found_by_name_tied_and_unregistered_ones_too() -> None:
    names = ["embedding.weight", "head.weight", "norm.weight", "norm.bias", "mask", "plain", "many['a'][0]", "many['a'][1][0]"]
    assert list(held_tensors(Block())) == names


def test_a_registered_tensor_in_an_attribute_as_well_is_found_once() -> None:
    model = nn.LSTM(3, 2).eval()
    assert list(held_tensors(model)) == [name for name, _ in model.named_parameters()]


ATTRIBUTES: dict[str, tuple[Callable[[Block], Any], str]] = {
    "a number": (lambda model: setattr(model.norm, "eps", 0.5), "norm.eps"),
    "a tuple": (lambda model: setattr(model, "scales", (0.5, 3)), "scales"),
    "a class": (lambda model: setattr(model, "act", nn.GELU()), "act.class"),
    "a module gone": (lambda model: setattr(model, "act", None), "act.class"),
    "one of the class": (lambda model: setattr(model, "rate", 0.5), "rate"),
    "an integer made a float": (lambda model: setattr(model, "scales", (0.5, 2.0)), "scales"),
}
SAME_ATTRIBUTES: dict[str, Callable[[Block], Any]] = {
    "a number": lambda model: setattr(model.norm, "eps", 1e-5),
    "another module of the class": lambda model: setattr(model, "act", nn.ReLU()),
    "mode": lambda model: model.train(),
    "a private one": lambda model: setattr(model, "_calls", 1),
    "a tensor": lambda model: setattr(model, "plain", torch.zeros(2)),
    "a call": lambda model: model(torch.arange(3)),
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_another_attribute_is_seen(kind: str) -> None:
    change, name = ATTRIBUTES[kind]
    model = Block()
    before = plain_attributes(model)
    change(model)
    now = plain_attributes(model)
    assert [each for each, text in before.items() if now.get(each) != text][:1] == [name]


@pytest.mark.parametrize("kind", SAME_ATTRIBUTES)
def test_what_is_no_attribute_of_the_computation_is_not(kind: str) -> None:
    model = Block()
    before = plain_attributes(model)
    SAME_ATTRIBUTES[kind](model)
    assert plain_attributes(model) == before


def test_the_code_of_a_graph_counts() -> None:
    graph = torch.fx.symbolic_trace(Block())
    before = plain_attributes(graph)
    graph.recompile()
    assert plain_attributes(graph) == before
    next(node for node in graph.graph.nodes if node.op == "output").args = (None,)
    graph.recompile()
    assert plain_attributes(graph)["code"] != before["code"]


DISTURBANCES: dict[str, tuple[Callable[[Block], Any], str]] = {
    "training": (lambda model: model.train(), "<root>: training mode and 4 more"),
    "training of one": (lambda model: model.norm.train(), "norm: training mode"),
    "a hook": (lambda model: model.register_forward_hook(print), "<root>: hooks (_forward_hooks)"),
    "a hook before": (lambda model: model.norm.register_forward_pre_hook(print), "norm: hooks (_forward_pre_hooks)"),
    "an autograd hook": (lambda model: model.norm.bias.register_hook(abs), "norm.bias: autograd hooks"),
}
NO_DISTURBANCES: dict[str, Callable[[Block], Any]] = {
    "training and back": lambda model: model.train().eval(),
    "a hook and off": lambda model: model.register_forward_hook(print).remove(),
    "an autograd hook and off": lambda model: model.norm.bias.register_hook(abs).remove(),
    "gradients": lambda model: model(torch.arange(3)).sum().backward(),
    "no gradients": lambda model: model.requires_grad_(False),
}


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_disturbance_is_named(kind: str) -> None:
    change, named = DISTURBANCES[kind]
    model = Block()
    change(model)
    assert disturbances(model) == [named]


@pytest.mark.parametrize("kind", NO_DISTURBANCES)
def test_what_is_undone_or_harmless_is_none(kind: str) -> None:
    model = Block()
    NO_DISTURBANCES[kind](model)
    assert disturbances(model) == []
