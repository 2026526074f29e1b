"""A pass that misbehaves costs nothing: the error names it and the program is as it was. Facts follow the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import PassError
from foldfx.passes import Fuel, Outcome, PassContext, PassResult, Status
from foldfx.passes.structure import structural_hash

aten = torch.ops.aten


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 32), nn.Linear(32, 3)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.relu(self.project(self.embedding(ids))).cumsum(1)


Edit = Callable[[foldfx.Program], object]


@dataclass
class Custom:
    """A pass made of one edit; it claims to have applied something."""

    edit: Edit
    name: ClassVar[str] = "custom"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        self.edit(program)
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "everything", "said so"),))


@pytest.fixture
def program() -> foldfx.Program:
    return foldfx.capture(Model(), (torch.randint(7, (2, 3)),), dynamic=False)


def test_what_each_pass_that_ran_leaves_is_handed_out(program: foldfx.Program) -> None:
    steps: list[tuple[str, foldfx.Program]] = []
    pipeline = foldfx.Pipeline(
        (Custom(lambda _: None), foldfx.FoldTokens(), foldfx.passes.FoldRoutes()), disable=["fold_routes"]
    )
    rewritten, _, _ = pipeline.rewrite(program, left=steps.append)
    assert [name for name, _ in steps] == ["custom", "fold_tokens"]
    assert steps[0][1] is program
    assert steps[1][1] is rewritten


def example() -> foldfx.Example:
    return foldfx.Example((torch.randint(7, (2, 3)),))


def without_state(program: foldfx.Program) -> None:
    del program.module.get_submodule("project").weight


def without_value(program: foldfx.Program) -> None:
    node = next(node for node in program.graph.nodes if node.name == "relu")
    with program.graph.inserting_before(node):
        node.replace_all_uses_with(program.graph.call_function(aten.relu.default, node.args))


def out_of_order(program: foldfx.Program) -> None:
    nodes = {node.name: node for node in program.graph.nodes}
    nodes["relu"].append(nodes["embedding"])


def raises(program: foldfx.Program) -> None:
    without_state(program)
    raise PassError("gave up half way")


@pytest.mark.parametrize("edit", [without_state, without_value, out_of_order, raises])
def test_a_pass_that_leaves_the_copy_malformed(program: foldfx.Program, edit: Edit) -> None:
    text, digest, state = program.text(), structural_hash(program.module), set(program.module.state_dict())
    call = example()
    outputs = program.module(*call.args)
    with pytest.raises(PassError, match=r"custom|gave up"):
        foldfx.Pipeline((Custom(edit), foldfx.FoldTokens())).run(program, [call])
    assert (program.text(), structural_hash(program.module), set(program.module.state_dict())) == (text, digest, state)
    assert torch.equal(program.module(*call.args), outputs)


def test_a_claim_without_a_change_is_not_believed(program: foldfx.Program) -> None:
    run = foldfx.Pipeline((Custom(lambda _: None),)).run(program, [example()])
    assert (run.accepted, run.status, run.rewrites) == (False, "unchanged", ())


def test_passes_run_in_order_on_what_the_last_one_left(program: foldfx.Program) -> None:
    seen: list[set[str]] = []
    look = Custom(lambda copy: seen.append(set(copy.module.state_dict())))
    foldfx.Pipeline((look, foldfx.FoldTokens(), look)).rewrite(program)
    assert seen[0] == set(program.module.state_dict())
    assert seen[1]
    assert not seen[0] & seen[1]


def test_facts_are_cached_for_one_graph_and_dropped_for_another(program: foldfx.Program) -> None:
    context = PassContext()
    facts = context.facts(program)
    assert context.facts(program) is facts
    copy = program.copy()
    assert context.facts(copy) is not facts
    assert set(context.facts(copy)) == set(copy.graph.nodes)


def test_facts_are_dropped_when_the_graph_is_edited(program: foldfx.Program) -> None:
    context, copy = PassContext(), program.copy()
    facts = context.facts(copy)
    node = next(node for node in copy.graph.nodes if node.name == "relu")
    node.target = aten.sigmoid.default
    assert context.facts(copy) is not facts
    assert "sigmoid" in context.facts(copy).explain("relu")


def test_fuel_is_shared_by_the_passes_of_a_run(program: foldfx.Program) -> None:
    left: list[bool] = []

    class Look:
        name: ClassVar[str] = "look"

        def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
            left.append(context.fuel.admits("look"))
            return PassResult(program, ())

    foldfx.Pipeline((Look(), foldfx.FoldTokens(), Look()), fuel=1).rewrite(program)
    assert left == [True, False]


def test_fuel_counts_and_leaves_out() -> None:
    fuel, endless = Fuel(2, {"wrong": "why"}), Fuel()
    for number, expected in enumerate((True, True, False)):
        assert fuel.admits(f"rewrite {number}") is expected
        assert not fuel.admits("wrong")
        assert endless.admits("wrong")
        fuel.take(f"rewrite {number}")
        endless.take("wrong")
    assert fuel.log == ["rewrite 0", "rewrite 1", "rewrite 2"]


class ReturnsNothing:
    name: ClassVar[str] = "returns_nothing"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        return None  # type: ignore[return-value]


def test_a_pass_returns_a_result(program: foldfx.Program) -> None:
    with pytest.raises(PassError, match="pass returns_nothing: it returned a NoneType, not a PassResult"):
        foldfx.Pipeline([ReturnsNothing()]).rewrite(program)
