"""Calls of another kind than the one captured: what an example did not show is refused, and never dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import CallError

VOCABULARY = 13
Agree = Callable[..., None]


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.down = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.Linear(64, 4)
        self.eval()

    def scores(self, ids: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.embedding(ids))))


class Batch(Scores):
    """What a dict or a list holds decides what it computes."""

    def forward(self, batch: dict[str, Tensor], parts: list[Tensor]) -> Tensor:
        x = self.scores(batch["ids"])
        for part in parts:
            x = x + part[..., None]
        return x if batch.get("mask") is None else x * batch["mask"][..., None]


class Masked(Scores):
    """A mask of bools is filled in, one of floats is added."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.scores(ids)
        near = x @ x.mT
        return (near.masked_fill(~mask, -1e9) if mask.dtype is torch.bool else near + mask).softmax(-1) @ x


class Hashed(Scores):
    """Numbers beyond 32 bits, which narrower ids wrap."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(ids) + (ids * 500_000_000).sign()[..., None]


def ids() -> Tensor:
    return torch.randint(VOCABULARY, (3, 5))


def test_what_a_dict_or_a_list_holds_beyond_the_captured_is_refused(agree: Agree) -> None:
    model, part = Batch(), torch.ones(3, 5)
    result = foldfx.compile(model, [foldfx.Example(({"ids": ids()}, [part]))])
    assert result.accepted
    call: tuple[Any, Any] = {"ids": ids()}, [2 * part]
    agree(model(*call), result.module(*call))
    for batch, parts in (({"ids": ids(), "mask": part}, [part]), ({"ids": ids()}, [part, part]), ({"ids": ids()}, (part,))):
        with pytest.raises(CallError, match="the call has structure"):
            result.module(batch, parts)


def test_keys_may_come_in_another_order(agree: Agree) -> None:
    model, mask = Batch(), torch.rand(3, 5)
    result = foldfx.compile(model, [foldfx.Example(({"ids": ids(), "mask": mask}, []))])
    assert result.accepted
    call = {"mask": mask.flip(1), "ids": ids()}
    agree(model(call, []), result.module(call, []))


def test_a_dtype_that_no_example_had_is_refused(agree: Agree) -> None:
    model = Masked()
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.zeros(3, 5, 5)))])
    assert result.accepted
    call = ids(), torch.randn(3, 5, 5)
    agree(model(*call), result.module(*call))
    for mask in (torch.rand(3, 5, 5) > 0.5, torch.zeros(3, 5, 5).double(), 1.0):
        with pytest.raises(CallError, match=r"input mask is .*verified for \['torch.float32'\]"):
            result.module(ids(), mask)


def test_a_dtype_that_an_example_had_is_admitted(agree: Agree) -> None:
    model = Scores()
    model.forward = lambda ids, mask: model.scores(ids) * mask[..., None]  # type: ignore[assignment,misc]
    masks = torch.rand(3, 5), torch.rand(3, 5).double()
    result = foldfx.compile(model, [foldfx.Example((ids(), mask)) for mask in masks])
    assert result.accepted
    for mask in masks:
        call = ids(), mask.flip(1)
        agree(model(*call), result.module(*call))


@pytest.mark.parametrize("captured", [torch.int32, torch.int64], ids=str)
def test_ids_of_another_width_are_admitted_where_they_mean_the_same(captured: torch.dtype, agree: Agree) -> None:
    model = Scores()
    model.forward = model.scores  # type: ignore[assignment]
    result = foldfx.compile(model, [foldfx.Example((ids().to(captured),))])
    assert result.accepted
    for dtype in (torch.int32, torch.int64):
        call = ids().to(dtype)
        agree(model(call), result.module(call))
    with pytest.raises(CallError, match=r"input ids is torch\.uint8"):
        result.module(ids().to(torch.uint8))


@pytest.mark.parametrize("first", [0, VOCABULARY - 1])
def test_ids_of_another_width_are_refused_where_some_id_means_something_else(first: int, agree: Agree) -> None:
    """Where the example has the last ids only, and where it has none of them."""
    model = Hashed()
    result = foldfx.compile(model, [foldfx.Example((torch.full((3, 5), first),))])
    assert result.accepted
    call = ids()
    agree(model(call), result.module(call))
    with pytest.raises(CallError, match=r"input ids is torch\.int32"):
        result.module(call.int())
