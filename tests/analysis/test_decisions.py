"""Where floats become discrete: which operations, over what, feeding what, and how near to another outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
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
}


@pytest.mark.parametrize("mixed", [False, True], ids=["token-only", "contextual"])
@pytest.mark.parametrize("name", DECIDED)
def test_a_decision_is_found_and_told_apart(name: str, mixed: bool) -> None:
    decide, kind = DECIDED[name]
    (found,) = decisions(decide, mixed)
    assert (found.kind, found.token_only, found.foldable) == (kind, not mixed, not mixed)
    assert found.score.meta["val"].is_floating_point()
    assert found.feeds
    assert found.to_dict()["token_only"] is not mixed


@pytest.mark.parametrize(
    "decide",
    [
        torch.relu,
        lambda x: x.max(-1).values,
        lambda x: x.sort(-1).values,
        lambda x: x.double(),
        lambda x: x.clamp(0, 1),
        lambda x: x.softmax(-1),
    ],
    ids=["relu", "values of max", "values of sort", "cast to a wider float", "clamp", "softmax"],
)
def test_what_stays_continuous_is_no_decision(decide: Callable[[Tensor], Any]) -> None:
    assert decisions(decide) == []


def test_comparisons_of_ids_are_exact_and_no_decision() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embedding(ids) * (ids != 0)[..., None]

    program = foldfx.capture(Masked().eval(), (torch.randint(7, (2, 3)),), dynamic=False)
    assert find_decisions(program, analyze_program(program)) == []


def test_a_draw_is_never_foldable_and_has_no_margin() -> None:
    (found,) = decisions(lambda x: torch.multinomial(x.softmax(-1)[0], 1))
    assert (found.kind, found.foldable) == ("draw", False)
    with pytest.raises(ValueError, match="draws at random"):
        found.margin(torch.rand(3, 6))


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
    assert found.margin(torch.tensor([scores])).tolist() == [margin]


THRESHOLDS: list[tuple[Callable[[Tensor], Any], list[float], list[float]]] = [
    (lambda x: x > 0.5, [0.5, 0.75, -1.0], [0.0, 0.25, 1.5]),
    (lambda x: x.floor(), [1.25, -0.25, 2.0], [0.25, 0.25, 0.0]),
    (lambda x: x.round(), [1.25, 0.5, -1.5], [0.25, 0.0, 0.0]),
    (lambda x: x.trunc(), [0.25, -0.75, 1.25], [0.75, 0.25, 0.25]),
    (lambda x: x.long(), [0.25, -0.75, 2.0], [0.75, 0.25, 0.0]),
    (lambda x: x.bool(), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
    (lambda x: x.sign(), [0.25, -0.75, 0.0], [0.25, 0.75, 0.0]),
]


@pytest.mark.parametrize(("decide", "scores", "margins"), THRESHOLDS)
def test_the_margin_of_a_threshold(decide: Callable[[Tensor], Any], scores: list[float], margins: list[float]) -> None:
    (found,) = decisions(decide)
    assert found.margin(torch.tensor(scores)).tolist() == margins


def test_the_margin_against_another_value() -> None:
    (found,) = decisions(lambda x: x[..., :3] <= x[..., 3:])
    (other,) = [node for node in found.node.all_input_nodes if node is not found.score]
    margin = found.margin(torch.tensor([1.0, 2.0]), {other: torch.tensor([1.5, 2.0])})
    assert margin.tolist() == [0.5, 0.0]


def test_the_margin_of_buckets() -> None:
    (found,) = decisions(lambda x: torch.bucketize(x, torch.tensor([-0.5, 0.5])))
    (edges,) = [node for node in found.node.all_input_nodes if node is not found.score]
    margin = found.margin(torch.tensor([0.0, 0.75, -0.5]), {edges: torch.tensor([-0.5, 0.5])})
    assert margin.tolist() == [0.5, 0.25, 0.0]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_top_k_set_changes_only_if_scores_move_by_half_the_margin(k: int) -> None:
    """The margin is what it claims to be: noise below half of it never changes the set, the right noise at it does."""
    (found,) = decisions(lambda x: x.topk(k).indices)
    scores = torch.randn(200, 6, dtype=torch.float64)
    margin = found.margin(scores)
    noise = (torch.rand(200, 6, dtype=torch.float64) - 0.5) * 0.999 * margin[:, None]
    chosen = scores.topk(k).indices.sort(-1).values
    assert torch.equal((scores + noise).topk(k).indices.sort(-1).values, chosen)
    order = scores.argsort(-1, descending=True)
    moved = scores.clone()
    moved.scatter_add_(-1, order[:, k - 1 : k], -0.501 * margin[:, None])
    moved.scatter_add_(-1, order[:, k : k + 1], 0.501 * margin[:, None])
    assert (moved.topk(k).indices.sort(-1).values != chosen).any(-1).all()
