"""Rollback by culprit: the wrong rewrites are found by bisection and left out, the others stay."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import PassError
from foldfx.passes import Outcome, PassContext, PassResult, Status
from foldfx.passes.builder import Builder
from foldfx.passes.rollback import find_culprit

aten = torch.ops.aten


class Question:
    """Counts how often it is asked whether a subset of rewrites fails."""

    def __init__(self, wrong: Sequence[set[str]]) -> None:
        self.wrong = wrong
        self.asked = 0

    def __call__(self, rewrites: Sequence[str]) -> str:
        self.asked += 1
        return "differs" if any(combination <= set(rewrites) for combination in self.wrong) else ""


@pytest.mark.parametrize("count", range(1, 65))
def test_a_culprit_takes_few_questions(count: int) -> None:
    log = [f"r{place}" for place in range(count)]
    for guilty in log:
        question = Question([{guilty}])
        culprit = find_culprit(log, "differs", question)
        assert (culprit.rewrite, culprit.partner) == (guilty, "")
        assert question.asked <= (ceil(log2(count)) if count > 1 else 0) + 1


@pytest.mark.parametrize("count", [2, 3, 7, 16, 64])
def test_an_interaction_is_named(count: int) -> None:
    log = [f"r{place}" for place in range(count)]
    for early in range(0, count - 1, 3):
        question = Question([{log[early], log[-1]}])
        culprit = find_culprit(log, "differs", question)
        assert (culprit.rewrite, culprit.partner) == (log[-1], log[early])
        assert question.asked <= 2 * (ceil(log2(count)) + 1)


class Towers(nn.Module):
    """Independent branches; each becomes one rewrite of `Scale`."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.count = count

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).cumsum(1)
        return torch.stack([torch.relu(x + place) for place in range(self.count)])


class Scale:
    """Multiplies each relu by a factor of its own: 1.0 is harmless."""

    name: ClassVar[str] = "scale"

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = factors

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        outcomes = []
        relus = [node for node in program.graph.nodes if node.target is aten.relu.default]
        for node, factor in zip(relus, self.factors, strict=True):
            if context.fuel.admits(node.name):
                context.fuel.take(node.name)
                scaled = Builder(program.module, node.next, self.name).call(aten.mul.Tensor, node, factor)
                node.replace_all_uses_with(scaled, delete_user_cb=lambda user, scaled=scaled: user is not scaled)
                outcomes.append(Outcome(self.name, Status.APPLIED, node.name, f"times {factor}"))
            else:
                reason = context.fuel.left_out.get(node.name, "out of fuel")
                outcomes.append(Outcome(self.name, Status.REJECTED, node.name, reason))
        program.module.recompile()
        return PassResult(program, tuple(outcomes))


def compiled(factors: Sequence[float]) -> tuple[Towers, Tensor, foldfx.Result]:
    model = Towers(len(factors)).eval()
    ids = torch.randint(0, 7, (3, 5))
    return model, ids, foldfx.compile(model, [foldfx.Example((ids,))], pipeline=foldfx.Pipeline([Scale(factors)]))


@pytest.mark.parametrize("wrong", [[0], [2], [1, 4], [0, 5, 6]])
def test_the_wrong_ones_are_named_and_the_rest_stays(wrong: list[int]) -> None:
    model, ids, result = compiled([1.5 if place in wrong else 1.0 for place in range(7)])
    assert result.accepted
    rejected = [outcome for outcome in result.report.data["outcomes"] if outcome["status"] == "rejected"]
    assert [outcome["subject"] for outcome in rejected] == [f"relu_{place}" if place else "relu" for place in wrong]
    assert all("wrong: example 0: output" in outcome["reason"] for outcome in rejected)
    kept = [node for node in result.module.graph.nodes if node.target is aten.mul.Tensor]
    assert len(kept) == 7 - len(wrong)
    assert torch.equal(result.module(ids), model(ids))


def test_nothing_survives_where_all_are_wrong() -> None:
    model, ids, result = compiled([1.5, 1.5, 1.5])
    assert result.status == "rolled_back"
    captured = foldfx.capture(model, (ids,))
    assert result.module.print_readable(print_output=False) == captured.text()


def test_harmless_rewrites_need_no_bisection() -> None:
    _, _, result = compiled([1.0, 1.0, 1.0])
    assert {outcome["status"] for outcome in result.report.data["outcomes"]} == {"applied"}


def test_a_pass_that_does_not_ask_is_named_instead_of_run_for_ever() -> None:
    class Deaf(Scale):
        def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
            context.fuel.take("relu")
            (relu,) = [node for node in program.graph.nodes if node.target is aten.relu.default]
            scaled = Builder(program.module, relu.next, self.name).call(aten.mul.Tensor, relu, 1.5)
            relu.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
            program.module.recompile()
            return PassResult(program, (Outcome(self.name, Status.APPLIED, "relu", "times 1.5"),))

    call = foldfx.Example((torch.randint(0, 7, (3, 5)),))
    with pytest.raises(PassError, match="relu: applied again after it was found wrong"):
        foldfx.compile(Towers(1).eval(), [call], pipeline=foldfx.Pipeline([Deaf([])]))


class Two(nn.Module):
    """Two parts that fold apart from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Embedding(7, 16), nn.Embedding(9, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(16, 48)

    def forward(self, ids: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        return self.up(self.one(ids)).cumsum(1), self.down(self.other(kinds)).cumsum(1)


def test_a_wrong_table_goes_and_the_other_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from foldfx.passes import ladder

    honest = ladder.tabulate

    def off(region, values, progress, alone):  # type: ignore[no-untyped-def]
        tables = honest(region, values, progress, alone)
        if region.name == "kinds":
            tables[0][3, 5] += 1e-3
        return tables

    monkeypatch.setattr(ladder, "tabulate", off)
    model = Two().eval()
    call = (torch.randint(0, 7, (2, 3)), torch.zeros(2, 4, dtype=torch.int64))
    result = foldfx.compile(model, [foldfx.Example(call)])
    assert result.accepted
    names = [rewrite["name"] for rewrite in result.report.data["rewrites"]]
    assert "fold_tokens: linear" in names
    assert "fold_tokens: linear_1" not in names
    (rejected,) = [outcome for outcome in result.report.data["outcomes"] if outcome["status"] == "rejected"]
    assert "table of linear_1" in rejected["reason"]
    assert "max-abs" in rejected["reason"]
    assert "ids 3" in rejected["reason"]
    assert "one.weight" not in result.module.state_dict()
    for mine, theirs in zip(result.module(*call), model(*call), strict=True):
        assert (mine - theirs).abs().max() <= 1e-5
