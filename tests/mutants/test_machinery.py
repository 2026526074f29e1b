"""Faults planted into lowering and into the rules: no pass is wrong, and still nothing wrong reaches the user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import foldfx
from foldfx.analysis.rules import RULES, Call
from foldfx.errors import FoldfxError
from foldfx.lowering import Declined, Reference
from foldfx.passes import Run, Verdict

aten = torch.ops.aten
VOCABULARY, WIDTH, OUT = 12, 64, 4


class Model(nn.Module):
    """Two values leave the region; outputs are floats and ints; a buffer counts the calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)
        self.scale = nn.Parameter(torch.rand(OUT) + 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.norm(self.embedding(ids))
        scores = (self.q(x) + hidden) * self.scale
        self.calls += 1
        return scores, self.k(x).cumsum(1), scores.argmax(-1)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def examples() -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(VOCABULARY, (2, 3)), torch.randn(2, 3, OUT))) for _ in range(2)]


@pytest.fixture(scope="module")
def program(model: Model, examples: list[foldfx.Example]) -> foldfx.Program:
    return foldfx.capture(model, examples[0].args, dynamic=False)


def attempt(program: foldfx.Program, model: nn.Module, examples: list[foldfx.Example]) -> Run | FoldfxError:
    try:
        return foldfx.Pipeline().run(program, examples, original=model)
    except FoldfxError as error:
        return error


def test_without_a_fault_it_is_accepted(program: foldfx.Program, model: Model, examples: list[foldfx.Example]) -> None:
    run = attempt(program, model, examples)
    assert isinstance(run, Run)
    assert run.status == "accepted"


def clamped(self: Reference, module: torch.fx.GraphModule, node: Node) -> str | Declined:
    """Lowers to a lookup that lets every id in."""
    table, ids, _ = node.args
    with module.graph.inserting_before(node):
        inside = module.graph.call_function(aten.clamp.default, (ids, 0, VOCABULARY - 1))
        inside.meta.update(ids.meta)  # type: ignore[union-attr]
        new = module.graph.call_function(aten.embedding.default, (table, inside))
    new.meta.update(node.meta)
    node.replace_all_uses_with(new)
    module.graph.erase_node(node)
    return "clamped"


def declines(self: Reference, module: torch.fx.GraphModule, node: Node) -> str | Declined:
    return Declined("on strike")


@pytest.mark.parametrize("lowering", [clamped, declines])
def test_a_fault_in_lowering_is_caught(
    lowering: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    program: foldfx.Program,
    model: Model,
    examples: list[foldfx.Example],
) -> None:
    monkeypatch.setattr(Reference, "lower", lowering)
    run = attempt(program, model, examples)
    assert isinstance(run, FoldfxError) or (run.status, run.verification.verdict) == ("rolled_back", Verdict.DIFFERENT)


def keeps(call: Call) -> object:
    """The unsound rule: this operation sees one row at a time."""
    return call.operands()[0].rows


Body = Callable[[Tensor], Tensor]
RULE_FAULTS: dict[object, Body] = {
    aten.cumsum.default: lambda x: x.cumsum(1),
    aten.softmax.int: lambda x: x.softmax(1),
    aten.flip.default: lambda x: x.flip(1),
    aten.roll.default: lambda x: x.roll(1, 1),
    aten.add.Tensor: lambda x: x + torch.arange(3.0)[:, None],
}


class Mixes(nn.Module):
    """Computes on after an operation that brings the position in."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, OUT)
        self.body = body
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.body(self.project(self.embedding(ids))))


@pytest.mark.parametrize("overload", RULE_FAULTS, ids=str)
def test_an_unsound_rule_is_caught(overload: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mixes(RULE_FAULTS[overload])
    calls = [foldfx.Example((torch.randint(VOCABULARY, (2, 3)),)) for _ in range(3)]
    program = foldfx.capture(model, calls[0].args, dynamic=False)
    assert foldfx.Pipeline().run(program, calls, original=model).accepted
    monkeypatch.setitem(RULES._rules, overload, keeps)
    run = foldfx.Pipeline().run(program, calls, original=model)
    assert (run.status, run.verification.verdict) == ("rolled_back", Verdict.DIFFERENT)
