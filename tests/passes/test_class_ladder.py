"""One table, else one for each execution class, else nothing: each rung verified, and none taken unasked."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.passes import Fuel, Outcome, PassContext, PassResult, Status, ladder, shape_profiles
from foldfx.passes.builder import Builder
from foldfx.passes.ladder import BY_CLASS
from foldfx.passes.verification.figures import EXACT

aten = torch.ops.aten
ONE = "fold_tokens: rounded"
SHAPES = ((1, 1), (1, 2), (2, 1), (1, 5), (3, 3), (2, 5), (1, 11), (3, 5), (1, 16), (2, 24), (7, 9), (5, 13), (2, 257), (0, 4))


def few(count: int) -> int:
    return 1 if count == 1 else 2 if count < 16 else 0


def last_of_four(count: int) -> Sequence[int] | int:
    return [*[0] * (count - count % 4), *[1] * (count % 4)] if count in (5, 6, 7, 9, 10, 11) else 0


def summed(x: Tensor) -> Tensor:
    return x.cumsum(-2).neg()


def outcomes(result: foldfx.Result, status: str) -> list[str]:
    return [each["reason"] for each in result.report.to_dict()["outcomes"] if each["status"] == status]


def same(model: nn.Module, other: Any, shapes: Sequence[tuple[int, ...]] = SHAPES) -> bool:
    ids = [torch.randint(40, shape) for shape in shapes]
    return all(torch.equal(model(each).view(torch.int32), other(each).view(torch.int32)) for each in ids)


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure only as many row counts as the plans here need."""
    monkeypatch.setattr(shape_profiles, "DENSE", 17)
    monkeypatch.setattr(shape_profiles, "SPARSE", (18, 40, 65, 128))


@pytest.mark.parametrize("plan", [few, last_of_four], ids=["by count", "by position"])
def test_where_one_table_is_wrong_one_for_each_class_is_taken(plan: Any, planted: Any, rounding: Any) -> None:
    planted.by_count(plan)
    model = rounding(through=summed)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(40, (2, 3)),))], pipeline=foldfx.Pipeline(limits=EXACT))
    assert (result.status, result.accepted) == ("accepted", True)
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == [ONE + BY_CLASS]
    assert same(model, result.module)
    assert outcomes(result, "applied")[0].count("a table for each execution class (1") == 1


def test_one_table_is_not_enough_there(planted: Any, rounding: Any) -> None:
    """The twin: within limits it is taken, and it does differ."""
    planted.by_count(few)
    model = rounding()
    result = planted.fold(model, limits=foldfx.Limits())
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == [ONE]
    assert result.report.to_dict()["rewrites"][0]["classes"] == []
    assert same(model, result.module, [(1, 16), (2, 24)])
    assert not same(model, result.module, [(1, 1)])
    assert not same(model, result.module, [(1, 5)])
    assert not all(each["bitwise"] for each in result.report.to_dict()["verification"]["layouts"])
    assert "table of rounded, scalar []: full domain of 40 ids, max-abs" in str(result.report)


def test_the_report_tells_of_classes(planted: Any, rounding: Any) -> None:
    """The call that shows the first rung wrong, the rule, what it rests on, and whether tables agree bit by bit."""
    planted.by_count(few)
    result = planted.fold(rounding(), ids=torch.randint(40, (4, 8)))
    (reason,) = outcomes(result, "rejected")
    assert reason.startswith("wrong: table of rounded, layout scalar")
    assert "instead of" in reason
    assert result.counterexamples[0].node == "rounded"
    data = json.loads(json.dumps(result.report.to_dict()))
    assert [each["rewrites"] for each in data["trials"]] == [[ONE], [ONE + BY_CLASS]]
    ((classes,),) = [each["classes"] for each in data["rewrites"]]
    assert classes["rule"] == "1 rows: class 1, 2–15 rows: class 2, 16 or more rows: class 0"
    places = [{"rows": 0, "positions": []}, {"rows": 1, "positions": [0]}, {"rows": 2, "positions": [0, 1]}]
    assert classes["tables"] == places
    assert classes["evidence"][1] == "the same at 2 thread(s), row counts 1–17"
    assert [each["stored"] for each in data["rewrites"][0]["tables"]] == ["rows of 3 execution classes, equal ones once"]
    checked = {each["layout"]: each for each in data["verification"]["layouts"]}
    assert {"as built", "scalar", "class 1", "class 2"} <= set(checked)
    assert all(each["bitwise"] and each["tokens"] == each["domain"] for name, each in checked.items() if name != "empty")
    text = str(result.report)
    assert classes["rule"] in text
    assert all(each in text for each in classes["evidence"])
    assert "table of rounded, class 2 [1, 2]: full domain of 40 ids, bitwise equal" in text
    held = sum(each.numel() * each.element_size() for each in result.module.state_dict().values())
    rows, numbers, bounds, rule = 3 * 40 * 8 * 4, 40 * 3, 2 * 8, 3 * 8
    assert held == rows + numbers + bounds + rule == data["rewrites"][0]["bytes_after"]
    assert data["storage"]["after"] == {"logical": held, "backing": held}


def test_classes_that_cost_more_than_they_free_are_refused_with_the_arithmetic(planted: Any, rounding: Any) -> None:
    """Five tables of 8 columns against one of 32."""
    planted.by_count(lambda n: min(n, 5))
    model = rounding()
    result = planted.fold(model)
    assert (result.status, result.accepted) == ("rolled_back", False)
    (reason,) = outcomes(result, "refused")
    taken = 5 * 40 * 8 * 4 + 40 * 5 + 4 * 8 + 5 * 8
    assert "tables by execution class (1 rows: class 1, 2 rows: class 2" in reason
    assert f"take {taken:,} B: logical 5,120 → {taken:,} B, backing 5,120 → {taken:,} B" in reason
    (refused,) = [each for each in result.report.to_dict()["outcomes"] if each["status"] == "refused"]
    assert refused["figures"]["bytes_after"] == refused["figures"]["logical_after"] == taken
    assert len(outcomes(result, "rejected")) == 1
    assert restored(planted, model, result)


def restored(planted: Any, model: nn.Module, result: foldfx.Result) -> bool:
    """The program handed back is the captured one, and holds the model's very bytes."""
    captured = planted.captured(model)
    state, others = model.state_dict(), result.module.state_dict()
    return (
        result.module.print_readable(print_output=False) == captured.text()
        and state.keys() == others.keys()
        and all(torch.equal(state[name].view(torch.int32), others[name].view(torch.int32)) for name in state)
        and same(model, result.module)
    )


SABOTAGE: dict[str, Any] = {
    "a table": lambda classes, tables: (classes, [[table.clone() for table in each] for each in tables]),
    "a bound": lambda classes, tables: (ladder.RowClasses((1, 14), classes.classes, classes.built), tables),
    "the classes": lambda classes, tables: (ladder.RowClasses(classes.bounds, ((2,), (1,), (0,)), classes.built), tables),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_wrong_second_rung_is_rejected_and_all_is_as_before(
    name: str, planted: Any, rounding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.by_count(few)
    honest = ladder.discover

    def off(*args: Any) -> Any:
        classes, tables = SABOTAGE[name](*honest(*args))
        if name == "a table":
            tables[2][0][7, 3] = torch.nextafter(tables[2][0][7, 3], torch.tensor(9.0))
        return classes, tables

    monkeypatch.setattr(ladder, "discover", off)
    model = rounding()
    result = planted.fold(model, ids=torch.randint(40, (3, 5)))
    assert result.status == "rolled_back"
    first, second = outcomes(result, "rejected")
    assert "layout scalar" in first
    assert "wrong: " in second
    assert name != "a table" or ("layout row counts" in second and "ids 7" in second)
    assert restored(planted, model, result)


def test_a_size_that_is_not_measured_is_caught_where_an_example_has_it(planted: Any, rounding: Any) -> None:
    planted.by_count(lambda n: [0] * (n - 1) + [1] if n == 300 else few(n))
    model = rounding()
    result = planted.fold(model, ids=torch.randint(40, (2, 150)))
    assert result.status == "rolled_back"
    assert restored(planted, model, result)


def test_what_is_no_rule_leaves_the_program_alone(planted: Any, rounding: Any) -> None:
    planted.by_count(lambda n: [0] * (n - 1) + [1] if n > 17 else few(n))
    model = rounding()
    result = planted.fold(model)
    assert not result.accepted
    assert "positions of one call round differently in calls of 18 rows" in outcomes(result, "refused")[0]
    assert restored(planted, model, result)


NEVER: dict[str, tuple[dict[str, Any], list[str]]] = {
    "any": ({}, [ONE]),
    "no fuel": ({"limit": 0}, []),
    "bisection without it": ({"only": []}, []),
    "bisection with it": ({"only": [ONE]}, [ONE]),
    "bisection names the second only": ({"only": [ONE + BY_CLASS]}, []),
    "the first is wrong": ({"left_out": {ONE: "why"}}, [ONE + BY_CLASS]),
    "the first is wrong, bisection without the second": ({"left_out": {ONE: "why"}, "only": []}, []),
    "the first is wrong, bisection with the first": ({"left_out": {ONE: "why"}, "only": [ONE]}, []),
    "the first is wrong, bisection with both": ({"left_out": {ONE: "why"}, "only": [ONE, ONE + BY_CLASS]}, [ONE + BY_CLASS]),
    "the first is wrong, no fuel": ({"left_out": {ONE: "why"}, "limit": 0}, []),
    "both are wrong": ({"left_out": {ONE: "why", ONE + BY_CLASS: "too"}}, []),
}


@pytest.mark.parametrize("name", NEVER)
def test_which_rung_fuel_admits(name: str, planted: Any, rounding: Any) -> None:
    planted.by_count(few)
    region, _ = planted.region()
    fuel, expected = Fuel(**NEVER[name][0]), NEVER[name][1]
    result = foldfx.FoldTokens().run(region.program.copy(), PassContext(fuel))
    assert [each.name for each in result.rewrites] == fuel.log == expected
    rejected = [each.reason for each in result.outcomes if each.status is Status.REJECTED]
    assert rejected == list(fuel.left_out.values())


class Double:
    """Doubles the sum that follows, which is wrong."""

    name: ClassVar[str] = "double"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        if not context.fuel.admits("double"):
            return PassResult(program, (Outcome(self.name, Status.REJECTED, "sum", "left out"),))
        context.fuel.take("double")
        node = next(node for node in program.graph.nodes if node.target is aten.cumsum.default)
        twice = Builder(program.module, node.next, self.name).call(aten.mul.Tensor, node, 2.0)
        node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "sum", "doubled"),))


@pytest.mark.parametrize("limits", [foldfx.Limits(), None], ids=["first rung", "second rung"])
def test_no_other_rung_is_tried_while_bisecting(limits: foldfx.Limits | None, planted: Any, rounding: Any) -> None:
    """Where the other rewrite is the wrong one, the trials have this rung, or none."""
    planted.by_count(few)
    model = rounding(through=summed)
    result = planted.fold(model, limits=limits or EXACT, ids=torch.randint(40, (4, 8)), passes=[foldfx.FoldTokens(), Double()])
    assert result.accepted
    trials = [each["rewrites"] for each in result.report.to_dict()["trials"]]
    kept = ONE if limits else ONE + BY_CLASS
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == [kept]
    assert trials[0] == (ONE, "double")
    assert trials[-1] == (kept,)
    wrong_first = [each for each in trials if ONE + BY_CLASS in each]
    assert not wrong_first if limits else all(ONE not in each for each in wrong_first)


STATED = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]


def test_stated_profiles_are_the_only_rung(planted: Any, rounding: Any) -> None:
    planted.by_count(few)
    model = rounding()
    result = planted.fold(model, profiles=STATED)
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == [ONE + BY_CLASS]
    assert outcomes(result, "rejected") == []
    assert same(model, result.module)
    (classes,) = result.report.to_dict()["rewrites"][0]["classes"]
    assert classes["evidence"][0] == "stated by the user"


def test_stated_profiles_that_are_wrong_are_rejected(planted: Any, rounding: Any) -> None:
    """The twin: one bound is off; within limits that is allowed, and said."""
    planted.by_count(few)
    model = rounding()
    wrong = [STATED[0], {"max_rows": 300, "evaluation_rows": 2}]
    result = planted.fold(model, profiles=wrong)
    assert result.status == "rolled_back"
    assert restored(planted, model, result)
    bounded = planted.fold(model, profiles=wrong, limits=foldfx.Limits())
    assert bounded.accepted, str(bounded.report)
    assert same(model, bounded.module, [(1, 1), (1, 15)])
    assert not same(model, bounded.module, [(1, 16)])
    assert not all(each["bitwise"] for each in bounded.report.to_dict()["verification"]["layouts"])


def test_an_evaluation_larger_than_its_profile_is_what_the_user_said(planted: Any, rounding: Any) -> None:
    planted.by_count(few)
    model = rounding()
    result = planted.fold(model, profiles=[{"max_rows": 1, "evaluation_rows": 8}], limits=foldfx.Limits())
    assert result.accepted, str(result.report)
    assert same(model, result.module, [(1, 16), (4, 10)])
    planted.by_count(lambda n: 2)
    assert same(model, result.module, [(1, 1)])


def test_a_stated_evaluation_whose_positions_disagree_is_refused(planted: Any, rounding: Any) -> None:
    planted.by_count(last_of_four)
    model = rounding()
    result = planted.fold(model, profiles=[{"max_rows": 7, "evaluation_rows": 6}])
    assert not result.accepted
    assert "a profile of 6 evaluation rows is not possible" in outcomes(result, "refused")[0]
    assert restored(planted, model, result)
    assert planted.fold(model, profiles=[{"max_rows": 4, "evaluation_rows": 4}], limits=foldfx.Limits()).accepted


def test_profiles_that_change_nothing_leave_one_plain_table(planted: Any, rounding: Any) -> None:
    model = rounding()
    result = planted.fold(model, profiles=STATED)
    assert result.accepted
    assert [tuple(each.shape) for each in result.module.state_dict().values()] == [(40, 8)]
    assert not [node for node in result.module.graph.nodes if node.target is aten.bucketize.Tensor]
    assert same(model, result.module)


class Two(nn.Module):
    """Two tables over the same ids, read in ways that raise differently, or alike."""

    def __init__(self, rounding: Any, read: str) -> None:
        super().__init__()
        self.one, self.other = rounding("gather"), rounding(read, 4)
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(ids).cumsum(-2), self.other(ids).cumsum(-2)


@pytest.mark.parametrize("read", ["gather", "embedding"])
def test_each_table_follows_its_own_rule(read: str, planted: Any, rounding: Any) -> None:
    """One kernel changes at 5 rows, the other at 9; both rules are state beside the tables of one input."""

    def plan(shape: Sequence[int]) -> Tensor:
        count = torch.Size(shape[:-1]).numel()
        return torch.full((count,), int(count < (5 if shape[-1] == 4 else 9)))

    planted.plan = plan
    model = Two(rounding, read)
    result = planted.fold(model)
    assert result.accepted, str(result.report)
    found = [each["classes"] for each in result.report.to_dict()["rewrites"]]
    assert sorted(each["rule"].split(" ")[0] for (each,) in found) == ["1–4", "1–8"]
    for place in (0, 1):
        assert same(lambda ids: model(ids)[place], lambda ids: result.module(ids)[place])  # noqa: B023


def test_exports_again(planted: Any, rounding: Any) -> None:
    planted.by_count(last_of_four)
    model = rounding()
    folded = planted.fold(model, ids=torch.randint(40, (2, 3))).module
    auto = torch.export.Dim.AUTO
    stored = io.BytesIO()
    torch.export.save(torch.export.export(folded, (torch.randint(40, (3, 5)),), dynamic_shapes=({0: auto, 1: auto},)), stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    assert same(model, loaded, [shape for shape in SHAPES if min(shape) > 0])
