"""Fragile tokens: which are near a tie, which fall otherwise at some row count, and what that does to the outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis import analyze_program
from foldfx.passes.probes import Probes, probe_decisions
from foldfx.passes.tables.tabulate import silent
from foldfx.passes.verification.fragility import COUNTS
from foldfx.passes.verification.margins import Margins

VOCABULARY, WIDTH, EXPERTS, CHOSEN = 300, 64, 8, 3
PLANTED = (7, 41, 160, 299)


class Routed(nn.Module):
    """A residual, and experts on a value, chosen by a router of the token's embedding."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.router = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, EXPERTS, bias=False))
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.eval().requires_grad_(False).to(dtype)

    def forward(self, ids: Tensor, value: Tensor) -> Tensor:
        rows = self.embedding(ids)
        top = self.router(rows).topk(CHOSEN)
        routed = (top.values.softmax(-1)[..., None] * self.experts[top.indices]).sum(-2)
        return rows + value[..., None] * routed

    def plant(self, tokens: tuple[int, ...], gap: float = 0.0) -> Routed:
        """Nudge rows, in float64, until the last chosen and the first not chosen score are `gap` apart."""
        first, last = (layer.weight.double() for layer in (self.router[0], self.router[2]))
        for token in tokens:
            row = self.embedding.weight[token].double()
            for _ in range(20):
                row = row.detach().requires_grad_(True)
                scores = last @ torch.relu(first @ row)
                best = scores.argsort(descending=True)
                apart = scores[best[CHOSEN - 1]] - scores[best[CHOSEN]]
                (slope,) = torch.autograd.grad(apart, row)
                row = row - (apart.detach() - gap) * slope / slope.dot(slope)
            self.embedding.weight[token] = row.detach().float()
        return self


def probed(model: nn.Module, calls: list[foldfx.Example], contexts: int = 0) -> Probes:
    program = foldfx.capture(model, calls[0].args)
    return probe_decisions(program, analyze_program(program), calls, contexts, silent)


def example(dtype: torch.dtype = torch.float32) -> foldfx.Example:
    return foldfx.Example((torch.randint(VOCABULARY, (3, 4)), 10 * torch.rand(3, 4, dtype=dtype)))


def brute_force(model: Routed) -> dict[int, tuple[int, ...]]:
    """For every token the row counts, of all that are probed, at which the model itself chooses otherwise than in bulk."""

    def chosen(ids: Tensor) -> Tensor:
        return model.router(model.embedding(ids)).topk(CHOSEN).indices

    bulk = chosen(torch.arange(VOCABULARY)[None])[0]
    found: dict[int, list[int]] = {}
    for token in range(VOCABULARY):
        for count in COUNTS:
            if not torch.equal(chosen(torch.full((1, count), token))[0], bulk[token].expand(count, -1)):
                found.setdefault(token, []).append(count)
    return {token: tuple(counts) for token, counts in found.items()}


def test_every_flip_is_found_with_its_row_counts_and_its_error() -> None:
    model = Routed().plant(PLANTED)
    call = example()
    (found,) = probed(model, [call]).fragilities
    assert {flip.token: flip.counts for flip in found.flips} == brute_force(model)
    assert {token for token, _ in found.tokens} >= set(PLANTED)
    assert found.fragile == len(found.tokens) < VOCABULARY // 10
    for flip in found.flips:
        assert flip.error is not None
        assert flip.error > 1e-3 or flip.order_only


def test_without_near_ties_nothing_is_fragile() -> None:
    """The twin: the same rows, their scores a hundred noise floors apart."""
    model = Routed()
    scores = model.router(model.embedding.weight).topk(CHOSEN + 1).values
    near = (scores[:, CHOSEN - 1] - scores[:, CHOSEN] < 1e-4).nonzero().reshape(-1)
    (found,) = probed(model.plant(tuple(near.tolist()), gap=1e-3), [example()]).fragilities
    assert (found.fragile, found.flips) == (0, ())
    assert found.margins.smallest > 100 * found.floor / 2 > 0
    assert brute_force(model) == {}


def test_margins_are_those_of_every_token() -> None:
    model = Routed().plant(PLANTED)
    (found,) = probed(model, [example()]).fragilities
    best = model.router(model.embedding.weight[None])[0].double().topk(CHOSEN + 1).values
    margins = best[:, CHOSEN - 1] - best[:, CHOSEN]
    assert found.by_token is not None
    assert torch.allclose(found.by_token, margins, rtol=0, atol=1e-6)
    assert found.margins.examined == VOCABULARY
    assert found.margins.ties + sum(found.margins.powers.values()) == VOCABULARY


def test_a_flip_of_the_order_alone_is_told_apart(planted_pair: Callable[[int, int], nn.Module]) -> None:
    """Ranks 1 and 2 exchanged choose the same two experts; ranks 2 and 3 do not."""
    for ranks, order_only in (((0, 1), True), ((1, 2), False)):
        ids = torch.randint(40, (3, 5))
        (found,) = probed(planted_pair(*ranks), [foldfx.Example((ids,))]).fragilities
        assert [(flip.token, flip.counts, flip.order_only) for flip in found.flips] == [(11, (1,), order_only)]


@pytest.fixture
def planted_pair(planted: Any, rounding: Any) -> Callable[[int, int], nn.Module]:
    """The planted kernel, otherwise in calls of one row, behind two scores of id 11 one bit apart."""

    def decide(x: Tensor) -> Tensor:
        return torch.cat([x[..., :3], 3 - x[..., 3:6]], -1).topk(2).indices

    def make(better: int, worse: int) -> nn.Module:
        planted.by_count(lambda count: int(count == 1))
        model = rounding(through=decide)
        up = torch.nextafter(torch.tensor(1.5), torch.tensor(0.0))
        rows = torch.rand(planted.VOCABULARY, planted.WIDTH).clamp_min(0.1) + 1
        first = 1.9 if (better, worse) == (1, 2) else 1.1
        rows[11] = torch.tensor([first, 1.5, 1.05, up, 1.95, 1.96, 1.0, 1.2])
        with torch.no_grad():
            model.weight.copy_(rows.repeat(1, 4))
        return model

    return make


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_share_of_tokens_that_choose_otherwise_in_float32(dtype: torch.dtype) -> None:
    model = Routed(dtype)
    found = probed(model, [example(dtype)])
    if dtype is torch.float32:
        assert found.shares == {}
        return
    wide = Routed().requires_grad_(False)
    wide.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    ids = torch.arange(VOCABULARY)[None]
    narrow, full = (each.router(each.embedding(ids)).topk(CHOSEN).indices[0].sort(1).values for each in (model, wide))
    share = float((narrow != full).any(1).float().mean())
    assert found.shares == {"topk": pytest.approx(share)}
    assert 0 < share < 0.2


def test_a_report_says_all_of_it() -> None:
    model = Routed().plant(PLANTED)
    result = foldfx.compile(model, [example()], pipeline=foldfx.Pipeline([]))
    text = str(result.report)
    assert f"{VOCABULARY} tokens by margin, the smallest" in text
    assert "fragile, with a margin of at most" in text
    assert "fall otherwise in calls of some row counts than in bulk" in text
    (decision,) = result.report.to_dict()["decisions"]
    assert {flip["token"] for flip in decision["probe"]["flips"]} == set(brute_force(model))


def turned(router: Routed, ids: Tensor) -> Tensor:
    """Scores with experts first, two positions after the other batch."""
    return router.router(router.embedding(ids)).permute(2, 1, 0)


LAID_OUT: dict[str, tuple[Callable[[Routed, Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "choice along the first axis": (
        lambda model, ids: turned(model, ids).topk(CHOSEN, 0).indices,
        lambda scores: scores.topk(CHOSEN + 1).values[:, -2:].diff(dim=1).abs()[:, 0],
    ),
    "thresholds in front": (
        lambda model, ids: model.router(model.embedding(ids)).sum(-1) > torch.tensor([-1.0, 0.0, 1.0])[:, None, None],
        lambda scores: (scores.sum(1, keepdim=True) - torch.tensor([-1.0, 0.0, 1.0])).abs().amin(1),
    ),
    "threshold named first": (
        lambda model, ids: torch.zeros(EXPERTS) < model.router(model.embedding(ids)),
        lambda scores: scores.abs().amin(1),
    ),
    "comparison of two values, transposed": (
        lambda model, ids: turned(model, ids)[:4] <= turned(model, ids)[4:],
        lambda scores: (scores[:, :4] - scores[:, 4:]).abs().amin(1),
    ),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_margins_are_those_of_every_token_however_scores_lie(name: str) -> None:
    decide, expected = LAID_OUT[name]

    class Laid(Routed):
        def forward(self, ids: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            return decide(self, ids), value

    model = Laid()
    (found,) = probed(model, [example()]).fragilities
    assert found.note == ""
    assert found.by_token is not None
    scores = model.router(model.embedding.weight[None])[0].double()
    assert torch.allclose(found.by_token, expected(scores), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False], ids=["one axis", "an axis each"])
def test_a_comparison_of_two_tokens_is_enumerated_over_both_where_they_share_an_axis(shared: bool) -> None:
    class Two(Routed):
        def forward(self, ids: Tensor, others: Tensor) -> Tensor:
            one, other = (self.router(self.embedding(each)) for each in (ids, others))
            return one > other if shared else one[:, None] > other

    model = Two()
    call = foldfx.Example(tuple(torch.randint(VOCABULARY, (length,)) for length in ((4, 4) if shared else (4, 5))))
    (found,) = probed(model, [call]).fragilities
    if not shared:
        assert found.margins.examined == 0
        assert "share no dynamic axis" in found.note
        return
    scores = model.router(model.embedding.weight[None])[0].double()
    apart = (scores[:, None] - scores[None]).abs().amin(2).reshape(-1)
    assert found.by_token is not None
    assert torch.allclose(found.by_token, apart, rtol=0, atol=1e-5)


def test_a_decision_without_a_margin_says_so() -> None:
    class Modal(Routed):
        def forward(self, ids: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.router(self.embedding(ids))
            return scores.mode(-1).indices, (scores + value[..., None]).mode(-1).indices

    found = probed(Modal(), [example()], contexts=8)
    (once,), (mixed,) = found.fragilities, found.near_ties
    assert "defines no margin for aten.mode" in once.note
    assert "defines no margin for aten.mode" in mixed.note


def test_margins_by_power_of_ten() -> None:
    found = Margins.of(torch.tensor([0.0, 2e-8, 3e-8, 0.5, math.inf, 1e-30]))
    assert (found.examined, found.ties, found.smallest) == (6, 1, 0.0)
    assert dict(found.powers) == {-12: 1, -8: 2, -1: 1}
    assert str(found + Margins.of(torch.tensor([2.0]))) == "0: 1, 1e-12: 1, 1e-08: 2, 1e-01: 1, 1e+00: 1"
    assert Margins.of(torch.empty(0)).to_dict()["smallest"] is None
