"""Calls that export drops as dead although a caller would notice: refused. Those nobody would notice are let go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError, ExampleError

Compute = Callable[["Model", Tensor], object]


class Model(nn.Module):
    """Looks up 9 rows; `dead` runs before, and its result is not used."""

    def __init__(self, dead: Compute) -> None:
        super().__init__()
        self.embedding, self.smaller, self.larger = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Embedding(20, 4)
        self.places = nn.Embedding(3, 4)
        self.dead = dead
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        self.dead(self, ids)
        return self.embedding(ids)


LOOKUP, RANDOM = (
    "and does not use the result.* ids outside it would no longer raise, or raise another exception; remove the call",
    "it does not use.*remove",
)
NOTICED: dict[str, tuple[Compute, str]] = {
    "fewer rows": (lambda m, ids: m.smaller(ids), r"looks up embedding \(5 rows, module smaller, .*" + LOOKUP),
    "behind other dead calls": (lambda m, ids: m.smaller(ids).sin().sum(), r"5 rows.*" + LOOKUP),
    "ids behind a slice": (lambda m, ids: m.larger.weight.gather(0, ids[:, :1].expand(-1, 4)), r"gather \(20 rows.*" + LOOKUP),
    "other ids": (lambda m, ids: m.larger(ids + 15), r"20 rows.*" + LOOKUP),
    "another exception": (lambda m, ids: F.one_hot(ids, 9), r"one_hot \(9 rows.*" + LOOKUP),
    "random": (lambda m, ids: torch.rand(3), r"draws random numbers it does not use: rand .*remove the call"),
    "dropout": (lambda m, ids: F.dropout(torch.ones(3), 0.5, training=True), "draws random numbers .*" + RANDOM),
}


@pytest.mark.parametrize("case", NOTICED)
def test_a_dead_call_that_a_caller_would_notice_is_refused(case: str) -> None:
    dead, why = NOTICED[case]
    with pytest.raises(CaptureError, match=why):
        foldfx.capture(Model(dead), (torch.randint(5, (2, 3)),), dynamic=False)


UNNOTICED: dict[str, Compute] = {
    "nothing": lambda m, ids: None,
    "as many rows": lambda m, ids: m.embedding(ids),
    "more rows": lambda m, ids: m.larger(ids),
    "the same ids, moved": lambda m, ids: m.larger(ids.flatten()),
    "negative ids": lambda m, ids: m.larger.weight[ids],
    "constant ids": lambda m, ids: m.places(torch.arange(3)),
    "no lookup": lambda m, ids: (ids + 1).float().softmax(-1),
    "dropout switched off": lambda m, ids: F.dropout(torch.ones(3), 0.5, training=False),
}


@pytest.mark.parametrize("case", UNNOTICED)
def test_a_dead_call_that_nobody_would_notice_is_dropped(case: str) -> None:
    model = Model(UNNOTICED[case])
    program = foldfx.capture(model, (torch.randint(5, (2, 3)),), dynamic=False)
    for ids in (torch.full((2, 3), 8), torch.full((2, 3), 9), torch.full((2, 3), -1)):
        outcomes: list[Any] = []
        for module in (model, program.module):
            try:
                outcomes.append(module(ids).tolist())
            except IndexError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]


class Gathers(nn.Module):
    """Reads the rows by `gather`, which raises another exception than an embedding does, before or after a dead lookup."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.embedding, self.first = nn.Embedding(9, 4), first
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        if not self.first:
            self.embedding(ids)
        rows = self.embedding.weight.gather(0, ids[:, None].expand(-1, 4))
        if self.first:
            self.embedding(ids)
        return rows


def test_a_dead_lookup_is_refused_where_its_exception_would_come_first() -> None:
    ids = torch.tensor([1, 2, 3])
    with pytest.raises(CaptureError, match=r"embedding \(9 rows, module embedding, .*" + LOOKUP):
        foldfx.capture(Gathers(first=False), (ids,), dynamic=False)
    model = Gathers(first=True)
    program = foldfx.capture(model, (ids,), dynamic=False)
    for module in (model, program.module):
        with pytest.raises(RuntimeError, match="out of bounds"):
            module(ids + 8)


def test_a_model_that_fails_on_the_example_says_so_first() -> None:
    with pytest.raises(ExampleError, match="the model itself fails on the example: IndexError"):
        foldfx.capture(Model(lambda m, ids: m.smaller(ids)), (torch.full((2, 3), 7),), dynamic=False)
