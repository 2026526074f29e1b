"""Margins of masks that compare a score with a value of its own: it meets itself there, which is no tie."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis import analyze_program
from foldfx.analysis.decisions import find_decisions

INF = math.inf
SCORES = [5.0, 1.0, 4.5, 2.0]


class Masked(nn.Module):
    """Comparisons of the embedding itself, so that the table's rows are scores."""

    def __init__(self, mask: Callable[[Tensor], Tensor], scores: list[float]) -> None:
        super().__init__()
        self.embedding, self.mask = nn.Embedding(2, len(scores)), mask
        self.embedding.weight.data.copy_(torch.tensor(scores))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.mask(self.embedding(ids))


def margins(mask: Callable[[Tensor], Tensor], scores: list[float]) -> list[float]:
    program = foldfx.capture(Masked(mask, scores), (torch.zeros(2, 3, dtype=torch.int64),), dynamic=False)
    (found,) = find_decisions(program, analyze_program(program))
    run = torch.fx.Interpreter(program.module)
    run.garbage_collect_values = False
    run.run(torch.zeros(2, 3, dtype=torch.int64))
    margin = found.margin({node: run.env[node] for node in found.operands})
    row: list[float] = margin.reshape(-1, len(scores))[0].tolist()
    return row


MASKS: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "below the k-th of a top-k": (lambda x: x < x.topk(2).values[..., -1:], [0.5, 3.5, INF, 2.5]),
    "selected and made a dimension": (lambda x: x < x.sort(-1).values[..., 2].unsqueeze(-1), [0.5, 3.5, INF, 2.5]),
    "k-th value": (lambda x: x >= x.kthvalue(2, keepdim=True).values, [3.0, 1.0, 2.5, INF]),
    "maximum, threshold first": (lambda x: x.max(-1, keepdim=True).values <= x, [INF, 4.0, 0.5, 3.0]),
    "expanded": (lambda x: x == x.amax(-1, keepdim=True).expand_as(x), [INF, 4.0, 0.5, 3.0]),
    "minimum": (lambda x: x > x.amin(-1, keepdim=True), [4.0, INF, 3.5, 1.0]),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_value_chosen_is_not_at_a_tie_with_itself(name: str) -> None:
    mask, expected = MASKS[name]
    assert margins(mask, SCORES) == expected


NOT_ITSELF: dict[str, tuple[Callable[[Tensor], Tensor], list[float], list[float]]] = {
    "another value that is equal": (MASKS["k-th value"][0], [5.0, 1.0, 2.0, 2.0], [3.0, 1.0, 0.0, 0.0]),
    "of another score": (lambda x: x < (x * 1).topk(2).values[..., -1:], SCORES, [0.5, 3.5, 0.0, 2.5]),
    "of several values": (lambda x: x < x.sort(-1).values, [1.0, 5.0, 3.0, 4.0], [0.0, 2.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("name", NOT_ITSELF)
def test_any_other_equal_value_is(name: str) -> None:
    mask, scores, expected = NOT_ITSELF[name]
    assert margins(mask, scores) == expected
