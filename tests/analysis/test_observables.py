"""Observables: which attributes can be declared, what a capture then returns, and what is refused, by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.decisions import find_decisions
from foldfx.analysis.dependence import analyze_program
from foldfx.analysis.observables import Complete, Observed, observed
from foldfx.errors import CaptureError, ExampleError

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3))
        self.logits: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.logits = self.linear(x)
        return self.logits.softmax(-1) * self.scale


class Model(nn.Module):
    """A router that keeps its logits. `write` says what else a call leaves behind."""

    default: ClassVar[int] = 3

    def __init__(self, write: Callable[[Model, Tensor], Any] = lambda model, scores: None) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(7, 4), Router()
        self.log: list[Tensor] = []
        self.total: Any = 0.0
        self.cached: Any = None
        self.write = write
        self.eval()

    def forward(self, ids: Tensor, *, shift: float = 0.0) -> Tensor:
        scores: Tensor = self.router(self.embedding(ids)) + shift
        self.write(self, scores)
        return scores


def refusal(model: nn.Module, *names: str) -> str:
    with pytest.raises(CaptureError) as caught:
        foldfx.capture(model, (IDS,), observables=names)
    return str(caught.value)


def test_a_declared_attribute_is_an_output_and_an_undeclared_one_is_refused_by_name() -> None:
    model = Model()
    program = foldfx.capture(model, (IDS,), {"shift": 1.0}, observables=["router.logits"])
    found = program.module(IDS, shift=1.0)
    assert isinstance(found, Complete)
    assert torch.equal(found.returned, model(IDS, shift=1.0))
    assert torch.equal(found.attributes["router.logits"], model.router.logits)
    assert dict(program.observables) == {"router.logits": 1}
    assert "would lose: router.logits." in refusal(model)
    assert "declare what it is to set: observables=['router.logits']" in refusal(model)


def test_capture_leaves_the_attribute_as_it_was() -> None:
    model = Model()
    foldfx.capture(model, (IDS,), observables=["router.logits"])
    assert model.router.logits is None
    model(IDS)
    left = model.router.logits
    foldfx.capture(model, (IDS,), observables=["router.logits"])
    assert model.router.logits is left


def test_what_is_declared_excuses_no_other_write() -> None:
    def write(model: Model, scores: Tensor) -> None:
        model.total = scores.sum()

    text = refusal(Model(write), "router.logits")
    assert "would lose: total." in text
    assert "observables=['total']" in text
    foldfx.capture(Model(write), (IDS,), observables=["router.logits", "total"])


GLOBALS: list[Tensor] = []


def seen_once(model: Model, scores: Tensor) -> None:
    GLOBALS.append(scores.sum())


def test_a_write_to_a_global_is_refused_whatever_is_declared() -> None:
    text = refusal(Model(seen_once), "router.logits")
    assert "GLOBALS (a global of" in text
    assert "observables=" not in text
    assert not GLOBALS


def test_a_name_that_forward_never_writes_is_refused_with_what_it_writes() -> None:
    text = refusal(Model(), "router.scores")
    assert text == "forward does not write the observable 'router.scores'; the attributes it writes: router.logits"
    assert "does not write the observable 'total'" in refusal(Model(), "router.logits", "total")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["router.gate.logits"], "nowhere in Model: Router has no attribute `gate`"),
        (["router.linear.weight"], "is a registered parameter"),
        (["router.scale"], "is a registered buffer; .* Buffers that a call writes are compared and kept"),
        (["router"], "is a registered submodule"),
        (["router.logits", "router.logits"], "'router.logits' and 'router.logits' are one attribute"),
    ],
)
def test_names_that_cannot_be_observables(names: list[str], why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        foldfx.capture(Model(), (IDS,), observables=names)


def test_one_module_under_two_paths_has_one_attribute() -> None:
    model = Model()
    model.again = model.router
    assert "'again.logits' and 'router.logits' are one attribute" in refusal(model, "again.logits", "router.logits")
    assert foldfx.capture(model, (IDS,), observables=["again.logits"]).observables == {"again.logits": 1}


@pytest.mark.parametrize("names", ["router.logits", [3], None])
def test_a_list_of_names_is_asked_for(names: Any) -> None:
    with pytest.raises(TypeError, match="pass a list of names"):
        foldfx.capture(Model(), (IDS,), observables=names)


def grow(model: Model, scores: Tensor) -> None:
    model.log.append(scores.sum())


def count(model: Model, scores: Tensor) -> None:
    model.total = model.total + scores.sum()


def keep_first(model: Model, scores: Tensor) -> None:
    if model.cached is None:
        model.cached = scores.sum()


def follow(model: Model, scores: Tensor) -> None:
    model.cached = scores.sum() if model.cached is None else scores.sum() * 2


@pytest.mark.parametrize(
    ("write", "name", "why"),
    [
        (grow, "log", "has no attribute 'append'"),
        (count, "total", "unsupported operand"),
        (keep_first, "cached", "where it holds something, cached is not set"),
        (follow, "cached", "the call's results depend on it"),
    ],
)
def test_what_is_carried_from_call_to_call_is_refused(write: Callable[[Model, Tensor], None], name: str, why: str) -> None:
    text = refusal(Model(write), "router.logits", name)
    assert f"reads what the call before left in the observable {name} (" in text
    assert why in text


def set_anew(model: Model, scores: Tensor) -> None:
    model.log = []
    grow(model, scores)
    model.total = 0.0
    count(model, scores)


def test_what_a_call_first_resets_is_not_carried() -> None:
    model = Model(set_anew)
    program = foldfx.capture(model, (IDS,), observables=["router.logits", "log", "total"])
    attributes = program.module(IDS).attributes
    model(IDS)
    assert torch.equal(attributes["total"], model.total)
    assert [value.item() for value in attributes["log"]] == [value.item() for value in model.log]


def write_all(model: Model, scores: Tensor) -> None:
    model.total = {"half": 0.5, "none": None, "count": 3, "name": "top", "rows": scores.shape[1], "pair": (scores, scores + 1)}


def test_constants_none_sizes_and_trees_are_kept() -> None:
    model = Model(write_all)
    program = foldfx.capture(model, (IDS,), observables=["total", "router.logits"])
    assert dict(program.observables) == {"total": 7, "router.logits": 1}
    found = program.module(IDS[:, :2]).attributes["total"]
    model(IDS[:, :2])
    assert found.keys() == model.total.keys()
    assert all(found[name] == model.total[name] for name in ("half", "none", "count", "name", "rows"))
    assert all(map(torch.equal, found["pair"], model.total["pair"]))


def test_a_value_no_graph_can_yield_is_refused() -> None:
    def write(model: Model, scores: Tensor) -> None:
        model.total = object()

    assert "'total' holds a object; a graph yields tensors" in refusal(Model(write), "total", "router.logits")


def test_a_default_of_the_class_comes_back() -> None:
    def write(model: Model, scores: Tensor) -> None:
        model.default = scores.shape[0]  # type: ignore[misc]

    model = Model(write)
    program = foldfx.capture(model, (IDS,), observables=["default", "router.logits"])
    assert program.module(IDS).attributes["default"] == 2
    assert "default" not in vars(model)


def test_a_forward_of_the_instance_is_the_one_observed() -> None:
    model = Model()

    def forward(self: Model, ids: Tensor) -> Tensor:
        self.total = self.embedding(ids).sum()
        return self.total * 2

    model.forward = MethodType(forward, model)  # type: ignore[method-assign]
    program = foldfx.capture(model, (IDS,), observables=["total"])
    assert torch.equal(program.module(IDS).returned, model(IDS))


def test_the_models_own_failure_is_an_example_error() -> None:
    with pytest.raises(ExampleError, match="the model itself fails on the example: IndexError"):
        foldfx.capture(Model(), (IDS + 10,), observables=["router.logits"])


def test_a_value_that_no_call_sets_is_missing_and_never_that_of_an_earlier_call() -> None:
    def write(model: Model, scores: Tensor) -> None:
        if scores.shape[0] > 1:
            model.total = scores.sum()

    model = Model(write)
    model(IDS)
    watched = observed(model, ["total", "router.logits"])
    assert watched(IDS).attributes.keys() == {"total", "router.logits"}
    assert watched(IDS[:1]).attributes.keys() == {"router.logits"}


def test_without_names_the_model_is_what_it_was() -> None:
    model = Model()
    assert observed(model, []) is model


def test_a_copy_is_independent_and_made_despite_a_gradient_history() -> None:
    model = Model()
    model(IDS)
    assert model.router.logits.requires_grad
    twin = copy.deepcopy(observed(model, ["router.logits"]))
    assert isinstance(twin, Observed)
    before = model(IDS)
    twin.double()
    assert twin(IDS).returned.dtype == torch.float64
    assert torch.equal(model(IDS), before)


def test_decisions_say_which_attribute_they_feed() -> None:
    def write(model: Model, scores: Tensor) -> None:
        model.total = scores.topk(2).indices

    program = foldfx.capture(Model(write), (IDS,), observables=["total", "router.logits"])
    (decision,) = find_decisions(program, analyze_program(program))
    assert decision.feeds == ("attribute total",)
