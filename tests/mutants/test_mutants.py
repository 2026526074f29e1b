"""Faults planted into the machinery: each one is rolled back or raised, and none reaches the user."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import foldfx
from foldfx.analysis.rules import RULES, Call
from foldfx.errors import FoldfxError
from foldfx.lowering import Declined, Reference, is_semantic
from foldfx.passes import PassContext, PassResult, Run, Verdict

aten = torch.ops.aten
VOCABULARY, WIDTH, OUT = 12, 64, 4
SEEN = 9
"""The examples use ids below this one only, so faults in the last rows show in the full-domain checks alone."""

Mutation = Callable[[foldfx.Program], None]


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
    return [foldfx.Example((torch.randint(SEEN, (2, 3)), torch.randn(2, 3, OUT))) for _ in range(2)]


@pytest.fixture(scope="module")
def program(model: Model, examples: list[foldfx.Example]) -> foldfx.Program:
    return foldfx.capture(model, examples[0].args, dynamic=False)


def lookups(program: foldfx.Program) -> list[Node]:
    return [node for node in program.graph.nodes if is_semantic(node)]


def call(program: foldfx.Program, target: object) -> Node:
    return next(node for node in program.graph.nodes if node.target is target)


def on_tables(change: Callable[[Tensor], Tensor]) -> Mutation:
    """A mutation of the rows of every table, as new tensors."""

    def mutate(program: foldfx.Program) -> None:
        for node in lookups(program):
            path, _, name = str(node.args[0].target).rpartition(".")  # type: ignore[union-attr]
            holder = program.module.get_submodule(path)
            setattr(holder, name, change(holder.get_buffer(name).clone()))

    return mutate


def added(place: tuple[int, int], much: float) -> Callable[[Tensor], Tensor]:
    def change(rows: Tensor) -> Tensor:
        rows[place] += much
        return rows

    return change


def set_bounds(bounds: str) -> Mutation:
    def mutate(program: foldfx.Program) -> None:
        for node in lookups(program):
            node.update_arg(2, bounds)

    return mutate


def drop_an_output(program: foldfx.Program) -> None:
    output = program.graph.output_node()
    output.args = (output.args[0][:-1],)  # type: ignore[index]


def exchange_outputs(program: foldfx.Program) -> None:
    output = program.graph.output_node()
    one, other, *rest = output.args[0]  # type: ignore[misc]
    output.args = ((other, one, *rest),)


def other_choice(program: foldfx.Program) -> None:
    call(program, aten.argmax.default).target = aten.argmin.default


def forget_the_count(program: foldfx.Program) -> None:
    program.graph.erase_node(call(program, aten.copy_.default))


def delete_state_that_is_read(program: foldfx.Program) -> None:
    del program.module.scale


def other_weight(program: foldfx.Program) -> None:
    program.module.scale = nn.Parameter(program.module.scale.detach() * 1.01)


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "two rows swapped": (on_tables(lambda rows: rows[[1, 0, *range(2, VOCABULARY)]]), "table .* exceeds"),
    "rows shifted by one": (on_tables(lambda rows: rows.roll(1, 0)), "table .* exceeds"),
    "columns shifted by one": (on_tables(lambda rows: rows.roll(1, 1)), "table .* exceeds"),
    "columns reversed": (on_tables(lambda rows: rows.flip(1)), "table .* exceeds"),
    "one entry off by 1e-3": (on_tables(added((3, 1), 1e-3)), "table .* max-abs 1.000e-03 exceeds"),
    "an unseen entry off by 1e-4": (on_tables(added((SEEN, 0), 1e-4)), "^table .* max-abs 1.000e-04 exceeds"),
    "last row wrong": (on_tables(added((VOCABULARY - 1, OUT - 1), 1e-3)), "^table .* exceeds"),
    "NaN in an unseen row": (on_tables(added((SEEN + 1, 0), float("nan"))), "table .* max-abs inf exceeds"),
    "rounded to float16": (on_tables(lambda rows: rows.half().float()), "table .* exceeds"),
    "unseen rows left empty": (
        on_tables(lambda rows: torch.cat([rows[:SEEN], torch.zeros_like(rows[SEEN:])])),
        "^table .* exceeds",
    ),
    "a row too few": (on_tables(lambda rows: rows[:-1]), "foldfx_tables"),
    "a row too many": (on_tables(lambda rows: torch.cat([rows, rows[:1]])), f"ids={VOCABULARY}, outside|foldfx_tables"),
    "table in double": (on_tables(Tensor.double), "dtype torch.float64|foldfx_tables"),
    "negative ids wrap": (set_bounds("index"), "^ids=-1, outside the domain"),
    "another exception": (set_bounds("gather"), "ids=-1, outside the domain: raised RuntimeError"),
    "an output dropped": (drop_an_output, "raised ValueError"),
    "outputs exchanged": (exchange_outputs, r"output \[1\]: max-abs"),
    "an int output changed": (other_choice, r"^example 0: output \[2\]: torch.int64 values differ"),
    "a buffer no longer written": (forget_the_count, "buffer .*calls"),
    "state deleted that is read": (delete_state_that_is_read, "malformed: .* scale"),
    "another weight changed": (other_weight, r"^example 0: output \[0\]: max-abs"),
}
"""The mutation, and the evidence that must give it away; ^ where nothing else may come first."""


def attempt(program: foldfx.Program, model: nn.Module, examples: list[foldfx.Example]) -> Run | FoldfxError:
    try:
        return foldfx.Pipeline().run(program, examples, original=model)
    except FoldfxError as error:
        return error


def test_without_a_fault_it_is_accepted(program: foldfx.Program, model: Model, examples: list[foldfx.Example]) -> None:
    run = attempt(program, model, examples)
    assert isinstance(run, Run)
    assert run.status == "accepted"


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutation], None]:
    """Makes the fold end with a mutation of what it did."""
    genuine = foldfx.FoldTokens.run

    def plant(mutation: Mutation) -> None:
        def run(self: foldfx.FoldTokens, program: foldfx.Program, context: PassContext) -> PassResult:
            result = genuine(self, program, context)
            mutation(result.program)
            result.program.module.recompile()
            return result

        monkeypatch.setattr(foldfx.FoldTokens, "run", run)

    return plant


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_in_the_fold_is_caught(
    fault: str,
    sabotage: Callable[[Mutation], None],
    program: foldfx.Program,
    model: Model,
    examples: list[foldfx.Example],
) -> None:
    mutation, evidence = MUTATIONS[fault]
    text, expected = program.text(), copy.deepcopy(model)(*examples[0].args)
    sabotage(mutation)
    run = attempt(program, model, examples)
    assert program.text() == text
    if isinstance(run, Run):
        assert (run.status, run.accepted, run.verification.verdict) == ("rolled_back", False, Verdict.DIFFERENT)
        assert run.program.text() == text
        assert all(map(torch.equal, copy.deepcopy(run.program.module)(*examples[0].args), expected))
    found = str(run) if isinstance(run, FoldfxError) else "\n".join(run.verification.because)
    assert re.search(evidence, found)


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
