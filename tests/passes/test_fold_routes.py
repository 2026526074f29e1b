"""Routers of token ids become tables of what they choose; routers of anything else are refused, saying why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.passes import FoldRoutes, Pipeline
from foldfx.passes.ladder import BY_CLASS

VOCABULARY, WIDTH, EXPERTS, CHOSEN = 40, 16, 6, 2

Agree = Callable[..., None]


class Experts(nn.Module):
    """Rank-one experts on a hidden value, chosen by a router that reads the token's embedding, or something else."""

    table: Tensor

    def __init__(self, scored_by: str = "token", weighed_by: str = "scores", experts: int = EXPERTS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.router = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, experts, bias=False))
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.Parameter(torch.randn(experts, WIDTH))
        self.register_buffer("table", torch.randint(experts, (VOCABULARY, CHOSEN)))
        self.scored_by, self.weighed_by = scored_by, weighed_by
        self.eval().requires_grad_(False)

    def forward(self, ids: Tensor, hidden: Tensor) -> Any:
        if self.scored_by == "table":
            scores, chosen = self.gate(hidden), self.table[ids]
        else:
            scores = self.router(hidden if self.scored_by == "hidden" else self._read(self.embedding(ids), hidden))
            chosen = scores.topk(CHOSEN).indices
        weights = {
            "scores": lambda: scores.gather(-1, chosen).softmax(-1),
            "hidden": lambda: self.gate(hidden).gather(-1, chosen).sigmoid(),
            "all scores": lambda: scores.softmax(-1).gather(-1, chosen),
        }[self.weighed_by]()
        routed = hidden + (weights[..., None] * self.experts[chosen]).sum(-2)
        return (routed, scores.softmax(-1).mean((0, 1))) if self.weighed_by == "all scores" else routed

    def _read(self, rows: Tensor, hidden: Tensor) -> Tensor:
        return {"token": rows, "both": rows + hidden, "positions": rows.cumsum(1)}[self.scored_by]


def calls(*shapes: tuple[int, int]) -> list[foldfx.Example]:
    return [
        foldfx.Example((torch.randint(VOCABULARY, shape), torch.randn(*shape, WIDTH))) for shape in shapes or ((3, 5), (1, 4))
    ]


def routed(model: nn.Module, **options: Any) -> foldfx.Result:
    return foldfx.compile(model, calls(), objective="routes", **options)


def outcomes(result: foldfx.Result, status: str) -> list[str]:
    return [each["reason"] for each in result.report.to_dict()["outcomes"] if each["status"] == status]


def tables(result: foldfx.Result) -> dict[str, torch.dtype]:
    state = result.module.state_dict()
    return {name.rpartition(".")[2]: tensor.dtype for name, tensor in state.items() if name.startswith("foldfx_tables")}


def test_ids_in_one_byte_and_weights_as_computed_replace_the_router(agree: Agree) -> None:
    model = Experts()
    result = routed(model)
    assert result.accepted, result.report
    assert tables(result).items() >= {"getitem_1": torch.uint8, "softmax": torch.float32}.items()
    assert not any(name.startswith(("router", "embedding")) for name in result.module.state_dict())
    for call in calls((4, 7), (1, 1), (1, 64)):
        agree(model(*call.args), result.module(*call.args))
    (route,) = result.routes().routes
    assert torch.equal(route.experts[0].t().long(), model.router(model.embedding.weight).topk(CHOSEN).indices)


def test_more_experts_than_a_byte_holds_take_two() -> None:
    result = routed(Experts(experts=300))
    assert result.accepted, result.report
    assert tables(result)["getitem_1"] is torch.int16


def test_where_weights_read_the_hidden_state_only_ids_become_a_table(agree: Agree) -> None:
    model = Experts(weighed_by="hidden")
    result = routed(model)
    assert result.accepted, result.report
    assert tables(result)["getitem_1"] is torch.uint8
    assert not any(dtype.is_floating_point for dtype in tables(result).values())
    state = result.module.state_dict()
    assert "gate.weight" in state
    assert "router.0.weight" not in state
    for call in calls((4, 7), (1, 1)):
        agree(model(*call.args), result.module(*call.args))


def test_a_router_that_someone_else_reads_stays_and_bytes_grow_by_the_tables(agree: Agree) -> None:
    model = Experts(weighed_by="all scores")
    result = routed(model)
    assert result.accepted, result.report
    assert "router.0.weight" in result.module.state_dict()
    (reason,) = outcomes(result, "applied")
    grown = result.report.to_dict()["rewrites"][0]["bytes_after"]
    assert 0 < grown <= VOCABULARY * CHOSEN * (1 + 4)
    assert f"bytes grow by {grown}, accepted for reproducible routes" in reason
    assert "its score linear_1 stays computed: softmax" in reason
    storage = result.report.to_dict()["storage"]
    assert storage["after"]["backing"] - storage["before"]["backing"] == grown
    call = calls((4, 7))[0]
    agree(model(*call.args), result.module(*call.args))


@pytest.mark.parametrize("scored_by", ["both", "positions"])
def test_a_router_of_context_is_refused_naming_what_it_reads(scored_by: str) -> None:
    result = routed(Experts(scored_by=scored_by))
    assert result.status == "unchanged"
    (reason,) = outcomes(result, "refused")
    assert "depends on more than token ids: " in reason
    assert ("input hidden" in reason) is (scored_by == "both")
    assert scored_by == "both" or Path(__file__).name in reason
    assert tables(result) == {}


def test_ids_that_come_from_a_table_already_are_reported_as_that() -> None:
    result = routed(Experts(scored_by="table", weighed_by="hidden"))
    assert result.status == "unchanged"
    assert any("ids come from table by token id already" in reason for reason in outcomes(result, "no_match"))


def test_without_a_decision_there_is_nothing_to_do() -> None:
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4)).eval()
    result = foldfx.compile(model, [((torch.randint(VOCABULARY, (2, 3)),), {})], objective="routes")
    assert outcomes(result, "no_match") == ["nothing chooses among several by a float score"]


@pytest.mark.parametrize(
    ("budget", "accepted"), [(VOCABULARY * CHOSEN * 5, True), (VOCABULARY * CHOSEN * 5 - 1, False), (0, False)]
)
def test_the_budget_holds_to_the_byte(budget: int, accepted: bool) -> None:
    result = routed(Experts(), max_table_bytes=budget)
    assert result.accepted is accepted
    if not accepted:
        assert outcomes(result, "refused") == [f"route tables of {VOCABULARY * CHOSEN * 5} B, the budget is {budget} B"]


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        FoldRoutes(-1)


def test_fuel_and_names_hold_for_routes_too() -> None:
    model, examples = Experts(), calls()
    none = foldfx.compile(model, examples, pipeline=Pipeline([FoldRoutes()], fuel=0))
    assert outcomes(none, "refused") == ["out of fuel: the maximum number of rewrites is used up"]
    off = foldfx.compile(model, examples, pipeline=Pipeline([FoldRoutes()], disable=["fold_routes"]))
    assert outcomes(off, "disabled") == ["disabled by name"]


def near_ties(x: Tensor) -> Any:
    """Scores that move in opposite directions when all of `x` moves by a bit: x itself, and 3 - x, exact for x in [1, 2)."""
    top = torch.cat([x[..., :3], 3 - x[..., 3:6]], -1).topk(2)
    return top.indices, x[..., 7:].cumsum(1)


@pytest.fixture
def tied(rounding: Any, planted: Any) -> nn.Module:
    """The planted kernel behind rows of which ids 11 and 29 have their second and third score one bit apart."""
    model = rounding(through=near_ties)
    up = torch.nextafter(torch.tensor(1.5), torch.tensor(0.0))
    with torch.no_grad():
        rows = torch.rand(planted.VOCABULARY, planted.WIDTH).clamp_min(0.1) + 1
        for token in (11, 29):
            rows[token] = torch.tensor([1.9, 1.5, 1.1, up, 1.95, 1.96, 1.0, 1.2])
        model.weight.copy_(rows.repeat(1, 4))
    return model


def test_a_flip_in_one_class_rejects_one_table_and_tables_by_class_are_exact(tied: nn.Module, planted: Any) -> None:
    planted.by_count(lambda count: int(count == 1))
    result = planted.fold(tied, limits=foldfx.Limits(), passes=[FoldRoutes()])
    assert result.accepted, result.report
    (rejected,) = outcomes(result, "rejected")
    assert "table of getitem_5, layout scalar" in rejected
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == [f"fold_routes: getitem_5{BY_CLASS}"]
    for token in range(planted.VOCABULARY):
        for count in (1, 2, 3, 16):
            ids = torch.full((1, count), token)
            assert torch.equal(tied(ids)[0], result.module(ids)[0])


def test_the_same_router_without_near_ties_takes_one_table(tied: nn.Module, planted: Any) -> None:
    planted.by_count(lambda count: int(count == 1))
    with torch.no_grad():
        tied.weight[[11, 29]] = tied.weight[:2].clone()
    result = planted.fold(tied, limits=foldfx.Limits(), passes=[FoldRoutes()])
    assert [each["name"] for each in result.report.to_dict()["rewrites"]] == ["fold_routes: getitem_5"]


def test_flips_that_follow_no_row_count_are_refused(tied: nn.Module, planted: Any) -> None:
    calls_so_far = iter(range(10**9))
    planted.by_count(lambda count: next(calls_so_far) % 3 if count == 1 else 0)
    result = planted.fold(tied, limits=foldfx.Limits(), passes=[FoldRoutes()])
    assert not result.accepted
    ids = torch.arange(planted.VOCABULARY)[None]
    assert torch.equal(tied(ids)[0], result.module(ids)[0])


class InLevels(nn.Module):
    """A group by the token, then an expert by the group; the group goes out too, or only chooses."""

    def __init__(self, shown: bool) -> None:
        super().__init__()
        self.embedding, self.groups = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 4)
        self.experts = nn.Parameter(torch.randn(4, 8))
        self.shown = shown
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        group = self.groups(self.embedding(ids)).argmax(-1)
        expert = self.experts[group].argmax(-1)
        return (group, expert) if self.shown else (expert,)


@pytest.mark.parametrize("shown", [True, False])
def test_a_choice_that_only_another_one_reads_needs_no_table(shown: bool, agree: Agree) -> None:
    model = InLevels(shown)
    call = foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))
    result = foldfx.compile(model, [call], objective="routes")
    assert result.accepted
    (rewrite,) = result.report.to_dict()["rewrites"]
    assert len([value for table in rewrite["tables"] for value in table["values"]]) == 1 + shown
    ids = torch.randint(VOCABULARY, (2, 9))
    agree(model(ids), result.module(ids))
