"""Where floats become discrete: which operations, over what, feeding what, and how near to another outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx._torch import schema_arguments
from foldfx.analysis import analyze_program
from foldfx.analysis.decisions import Decision, find_decisions

INF = math.inf


class Scores(nn.Module):
    """Token-only scores, or scores that positions have been mixed into, behind one operation."""

    def __init__(self, decide: Callable[[Tensor], Any], mixed: bool) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 8), nn.Linear(8, 6)
        self.decide, self.mixed = decide, mixed
        self.eval()

    def forward(self, ids: Tensor) -> Any:
        score = self.project(self.embedding(ids))
        return self.decide(score.cumsum(1) if self.mixed else score)


def decisions(decide: Callable[[Tensor], Any], mixed: bool = False) -> list[Decision]:
    program = foldfx.capture(Scores(decide, mixed), (torch.randint(7, (2, 3)),), dynamic=False)
    return find_decisions(program, analyze_program(program))


DECIDED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "topk": (lambda x: x.topk(2).indices, "top-k"),
    "topk of which values are read": (lambda x: x.topk(2), "top-k"),
    "argmax": (lambda x: x.argmax(-1), "argmax"),
    "argmin": (lambda x: x.argmin(-1), "argmax"),
    "max with indices": (lambda x: x.max(-1).indices, "argmax"),
    "sort": (lambda x: x.sort(-1).indices, "sort"),
    "argsort": (lambda x: x.argsort(-1), "sort"),
    "comparison into where": (lambda x: torch.where(x > 0.5, x, 0.0), "comparison"),
    "comparison of two values": (lambda x: x[..., :3] <= x[..., 3:], "comparison"),
    "mask": (lambda x: x.masked_fill(x < 0, 0.0), "comparison"),
    "floor": (lambda x: x.floor(), "rounding"),
    "round": (lambda x: x.round(), "rounding"),
    "trunc": (lambda x: x.trunc(), "rounding"),
    "sign": (lambda x: x.sign(), "rounding"),
    "cast": (lambda x: x.long(), "cast"),
    "buckets": (lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.5])), "buckets"),
    "search among stored edges": (lambda x: torch.searchsorted(torch.tensor([-0.5, 0.5]), x), "buckets"),
    "among constants": (lambda x: torch.isin(x, torch.tensor([0.0, 1.0])), "comparison"),
    "k-th value": (lambda x: x.kthvalue(2).indices, "order"),
    "median": (lambda x: x.median(-1).indices, "order"),
    "median without NaN": (lambda x: x.nanmedian(-1).indices, "order"),
    "mode": (lambda x: x.mode(-1).indices, "order"),
    "running maximum": (lambda x: x.cummax(-1).indices, "argmax"),
    "running minimum": (lambda x: x.cummin(-1).indices, "argmax"),
    "stable sort": (lambda x: x.sort(dim=-1, stable=True).indices, "sort"),
    "stable argsort": (lambda x: x.argsort(dim=-1, stable=True), "sort"),
    "comparison by another name": (lambda x: x.less_equal(0.5), "comparison"),
    "threshold first": (lambda x: torch.full((6,), 0.5) > x, "comparison"),
    "nearly equal": (lambda x: x.isclose(x[..., :1]), "comparison"),
    "threshold": (lambda x: nn.functional.threshold(x, 0.5, 2.0), "comparison"),
    "not": (lambda x: x.logical_not(), "comparison"),
    "and": (lambda x: x.logical_and(x[..., :1]), "comparison"),
    "any": (lambda x: x.any(-1), "comparison"),
    "all": (lambda x: x.all(-1), "comparison"),
    "how many are not zero": (lambda x: x.count_nonzero(-1), "comparison"),
    "step": (lambda x: x.heaviside(torch.tensor(0.5)), "rounding"),
    "sign bit": (lambda x: x.signbit(), "rounding"),
    "sign of another": (lambda x: torch.ones(6).copysign(x), "rounding"),
    "fix": (lambda x: x.fix(), "rounding"),
    "fraction": (lambda x: x.frac(), "rounding"),
    "floor division": (lambda x: x // 0.1, "rounding"),
    "rounded division": (lambda x: x.div(0.1, rounding_mode="trunc"), "rounding"),
    "remainder": (lambda x: x % 0.1, "rounding"),
    "remainder towards zero": (lambda x: x.fmod(0.1), "rounding"),
    "cast by example": (lambda x: x.type_as(torch.zeros(1, dtype=torch.int64)), "cast"),
}


@pytest.mark.parametrize("mixed", [False, True], ids=["token-only", "contextual"])
@pytest.mark.parametrize("name", DECIDED)
def test_a_decision_is_found_and_told_apart(name: str, mixed: bool) -> None:
    decide, kind = DECIDED[name]
    (found,) = decisions(decide, mixed)
    assert (found.kind, found.token_only, found.foldable) == (kind, not mixed, not mixed)
    assert found.score.meta["val"].is_floating_point()
    assert found.score.op == "call_function"
    assert found.feeds
    assert found.to_dict()["token_only"] is not mixed


@pytest.mark.parametrize(
    ("decide", "kind"),
    [
        (lambda x: x.histc(4, -1.0, 1.0), "buckets"),
        (lambda x: nn.functional.max_pool1d(x, 2, return_indices=True)[1], "argmax"),
        (lambda x: x.view(torch.int32), "bits"),
    ],
    ids=["histogram", "pooling with indices", "bits"],
)
def test_a_decision_that_no_rule_proves_is_found_too(decide: Callable[[Tensor], Any], kind: str) -> None:
    (found,) = decisions(decide)
    assert (found.kind, found.token_only) == (kind, False)
    assert "defines no margin" in found.without_margin


@pytest.mark.parametrize(
    "decide",
    [
        torch.relu,
        lambda x: x.max(-1).values,
        lambda x: x.sort(-1).values,
        lambda x: x.double(),
        lambda x: x.clamp(0, 1),
        lambda x: x.softmax(-1),
        lambda x: x.kthvalue(2).values,
        lambda x: x.cummax(-1).values,
        lambda x: nn.functional.max_pool1d(x, 2),
        lambda x: x.div(0.1, rounding_mode=None),
        lambda x: x.type_as(torch.zeros(1, dtype=torch.float64)),
        lambda x: x.topk(0).indices,
        lambda x: x[..., :0] > 0,
        lambda x: x[..., :0].any(-1),
    ],
    ids=[
        "relu",
        "values of max",
        "values of sort",
        "cast to a wider float",
        "clamp",
        "softmax",
        "k-th value itself",
        "running maximum itself",
        "pooling",
        "division",
        "type of a wider float",
        "top of none",
        "comparison of nothing",
        "any of nothing",
    ],
)
def test_what_stays_continuous_or_is_nothing_is_no_decision(decide: Callable[[Tensor], Any]) -> None:
    assert decisions(decide) == []


@pytest.mark.parametrize("cast", [False, True])
def test_comparisons_of_ids_are_exact_and_no_decision(cast: bool) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embedding(ids) * ((ids.float() if cast else ids) != 0)[..., None]

    program = foldfx.capture(Masked().eval(), (torch.randint(7, (2, 3)),), dynamic=False)
    assert find_decisions(program, analyze_program(program)) == []


def test_a_draw_is_never_foldable_and_has_no_margin() -> None:
    (found,) = decisions(lambda x: torch.multinomial(x.softmax(-1)[0], 1))
    assert (found.kind, found.foldable) == ("draw", False)
    with pytest.raises(ValueError, match="foldfx defines no margin for"):
        found.margin({found.score: torch.rand(3, 6)})


def test_it_says_what_a_decision_feeds() -> None:
    class Routed(nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.gate = nn.Embedding(7, 8), nn.Linear(8, 4)
            self.register_buffer("last", torch.zeros(2, 3, dtype=torch.int64))

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            x = self.embedding(ids)
            chosen = self.gate(x).argmax(-1)
            self.last.copy_(chosen)
            return x, x * chosen[..., None]

    program = foldfx.capture(Routed().eval(), (torch.randint(7, (2, 3)),), dynamic=False)
    (found,) = find_decisions(program, analyze_program(program))
    assert found.feeds == ("buffer last", "output 1")


MARGINS: list[tuple[Callable[[Tensor], Any], list[float], float]] = [
    (lambda x: x.topk(2).indices, [5.0, 1.0, 4.5, 2.0, 0.0, 0.0], 2.5),
    (lambda x: x.topk(6).indices, [5.0, 1.0, 4.5, 2.0, 0.0, 0.0], INF),
    (lambda x: x.topk(2, largest=False).indices, [5.0, 1.0, 4.5, 2.0, 0.25, 0.0], 0.75),
    (lambda x: x.argmax(-1), [5.0, 1.0, 4.5, 2.0, 0.0, 0.0], 0.5),
    (lambda x: x.argmin(-1), [5.0, 1.0, 4.5, 2.0, 0.0, 0.0], 0.0),
    (lambda x: x.sort(-1).indices, [5.0, 1.0, 4.5, 2.0, 0.0, -3.0], 0.5),
    (lambda x: x.max(-1).indices, [3.0, 3.0, 1.0, 0.0, 0.0, 0.0], 0.0),
]


@pytest.mark.parametrize(("decide", "scores", "margin"), MARGINS)
def test_the_margin_of_a_choice(decide: Callable[[Tensor], Any], scores: list[float], margin: float) -> None:
    (found,) = decisions(decide)
    assert found.margin({found.score: torch.tensor([scores])}).tolist() == [margin]


THRESHOLDS: list[tuple[Callable[[Tensor], Any], list[float], list[float]]] = [
    (lambda x: x > 0.5, [0.5, 0.75, -1.0], [0.0, 0.25, 1.5]),
    (lambda x: x.floor(), [1.25, -0.25, 2.0], [0.25, 0.25, 0.0]),
    (lambda x: x.round(), [1.25, 0.5, -1.5], [0.25, 0.0, 0.0]),
    (lambda x: x.trunc(), [0.25, -0.75, 1.25], [0.75, 0.25, 0.25]),
    (lambda x: x.long(), [0.25, -0.75, 2.0], [0.75, 0.25, 0.0]),
    (lambda x: x.bool(), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (lambda x: x.sign(), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (torch.nonzero, [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (torch.where, [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (torch.argwhere, [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (lambda x: x.nonzero(as_tuple=True), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (lambda x: x.type_as(torch.zeros(1, dtype=torch.bool)), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (lambda x: x.type_as(torch.zeros(1, dtype=torch.int64)), [0.25, -0.75, 2.0], [0.75, 0.25, 0.0]),
]


@pytest.mark.parametrize(("decide", "scores", "margins"), THRESHOLDS)
def test_the_margin_of_a_threshold(decide: Callable[[Tensor], Any], scores: list[float], margins: list[float]) -> None:
    (found,) = decisions(decide)
    assert found.margin({found.score: torch.tensor(scores)}).tolist() == margins


LOW = (torch.bfloat16, torch.float16)
PROMOTED: dict[str, tuple[Callable[[Tensor], Any], tuple[torch.dtype, ...]]] = {
    "comparison": (lambda x: x > 0.1, (*LOW, torch.float32)),
    "comparison with a tensor without dimensions": (
        lambda x: x >= torch.tensor(0.1, dtype=torch.float64),
        (*LOW, torch.float32),
    ),
    "remainder": (lambda x: x % 0.1, (*LOW, torch.float32)),
    "remainder towards zero": (lambda x: x.fmod(0.1), (*LOW, torch.float32)),
    "among constants": (lambda x: torch.isin(x, 0.1), (*LOW, torch.float32)),
    "threshold": (lambda x: nn.functional.threshold(x, 0.1, 2.0), (torch.float32,)),
    "floor division": (lambda x: x // 0.1, (torch.float32,)),
}


@pytest.mark.parametrize("dtype", [*LOW, torch.float32])
@pytest.mark.parametrize("name", PROMOTED)
def test_a_number_is_rounded_to_what_torch_computes_in(name: str, dtype: torch.dtype) -> None:
    """So a score that is 0.1 in its dtype is at a tie, or is not."""
    decide, ties = PROMOTED[name]
    (found,) = decisions(decide)
    values = dict.fromkeys(found.operands, torch.tensor(0.1, dtype=torch.float64))
    margin = found.margin(values | {found.score: torch.tensor([0.1], dtype=dtype)})
    assert (margin.item() == 0) is (dtype in ties)


def test_tensors_with_dimensions_are_compared_in_the_wider_dtype() -> None:
    (found,) = decisions(lambda x: x > torch.tensor([0.1], dtype=torch.float64))
    values = dict.fromkeys(found.operands, torch.tensor([0.1], dtype=torch.float64))
    assert found.margin(values | {found.score: torch.tensor([0.1], dtype=torch.bfloat16)}).item() > 0


def test_the_margin_against_another_value() -> None:
    (found,) = decisions(lambda x: x[..., :3] <= x[..., 3:])
    (other,) = [node for node in found.node.all_input_nodes if node is not found.score]
    margin = found.margin({found.score: torch.tensor([1.0, 2.0]), other: torch.tensor([1.5, 2.0])})
    assert margin.tolist() == [0.5, 0.0]


def test_the_margin_of_buckets() -> None:
    (found,) = decisions(lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.5])))
    (edges,) = [node for node in found.node.all_input_nodes if node is not found.score]
    margin = found.margin({found.score: torch.tensor([0.0, 0.75, -0.5]), edges: torch.tensor([-0.5, 0.5])})
    assert margin.tolist() == [0.5, 0.25, 0.0]


def outcome(found: Decision, score: Tensor) -> Tensor:
    """What the operation itself decides for float64 scores: indices as they come, of a top-k as a set."""
    arguments = schema_arguments(found.node)
    for node in found.operands:
        name = next(name for name, value in arguments.items() if value is node)
        arguments[name] = score if node is found.score else node.meta["constant"].double()
    result = found.node.target(**{name: value for name, value in arguments.items() if value is not None})
    indices = result[1] if isinstance(result, tuple) else result
    return indices.sort(-1).values if found.kind == "top-k" else indices


CHOICES = ("topk", "argmax", "argmin", "max with indices", "sort", "argsort", "k-th value", "median", "running maximum")
THRESHOLDED = (
    *("comparison into where", "mask", "floor", "round", "trunc", "sign", "cast", "comparison by another name", "sign bit"),
    *("fix", "floor division", "rounded division"),
)


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_stays_while_scores_move_by_less_than_half_its_margin(name: str) -> None:
    (found,) = decisions(DECIDED[name][0])
    scores = torch.randn(200, 6, dtype=torch.float64)
    margin = found.margin({found.score: scores})
    assert margin.shape == (200,)
    noise = (torch.rand(200, 6, dtype=torch.float64) - 0.5) * 0.999 * margin[:, None]
    assert torch.equal(outcome(found, scores + noise), outcome(found, scores))
    ways = [scores + sign * 0.5001 * margin[:, None] for sign in torch.tensor(list(product((-1, 1), repeat=6)))]
    changed = torch.stack([(outcome(found, way) != outcome(found, scores)).reshape(200, -1).any(1) for way in ways])
    assert changed.any(0).all()


@pytest.mark.parametrize("name", THRESHOLDED)
def test_a_threshold_is_crossed_at_the_margin_and_not_before(name: str) -> None:
    (found,) = decisions(DECIDED[name][0])
    scores = 3 * torch.randn(200, 6, dtype=torch.float64)
    margin = found.margin({found.score: scores})
    assert margin.shape == scores.shape
    decided = outcome(found, scores)
    before, after = ([outcome(found, scores + sign * far * margin) != decided for sign in (-1, 1)] for far in (0.999, 1.001))
    assert not torch.stack(before).any()
    assert torch.stack(after).any(0).all()


def test_two_equal_infinities_are_a_tie_and_nan_has_no_margin() -> None:
    (found,) = decisions(lambda x: x.topk(2).indices)
    scores = torch.tensor([[1.0, -INF, -INF, -INF, -INF, -INF], [1.0, 2.0, -INF, -INF, -INF, -INF], [math.nan] * 6])
    assert found.margin({found.score: scores}).tolist() == [0.0, INF, INF]


def test_a_margin_is_spread_over_what_is_chosen_from() -> None:
    """And over nothing where there is one for each element."""
    scores = torch.randn(2, 3, 6)
    for decide, shape in ((lambda x: x.topk(2, 1).indices, (2, 6)), (lambda x: x > 0, (2, 3, 6))):
        (found,) = decisions(decide)
        values = {found.score: scores}
        assert found.margin(values).shape == shape
        assert found.spread(found.margin(values), values).shape == scores.shape
