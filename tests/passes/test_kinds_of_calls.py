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


@pytest.mark.parametrize("captured", [2, 2.0, 1, True], ids=repr)
def test_an_equal_number_of_another_type_is_refused(captured: float, agree: Agree) -> None:
    model = Scores()
    model.forward = lambda ids, factor: model.scores(ids) + (ids * factor).sum()  # type: ignore[assignment,misc]
    result = foldfx.compile(model, [foldfx.Example((ids(), captured))])
    assert result.accepted
    call = ids(), captured
    agree(model(*call), result.module(*call))
    other = float(captured) if isinstance(captured, int) else int(captured)
    with pytest.raises(CallError, match=rf"input factor is {type(other).__name__}; .*\['{type(captured).__name__}'\]"):
        result.module(ids(), other)


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


class Strided(Scores):
    """Asks how its ids lie in memory."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.scores(ids) + ids.stride(-1)


class Flattened(Scores):
    """Needs a copy of what is not contiguous, which a trace of what is does not make."""

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.scores(ids), hidden.reshape(-1)


def test_a_layout_that_means_something_else_is_refused(agree: Agree) -> None:
    model = Strided()
    result = foldfx.compile(model, [foldfx.Example((ids(),))])
    assert result.accepted
    call = ids()
    agree(model(call), result.module(call))
    for other in (ids().mT.contiguous().mT, torch.randint(VOCABULARY, (3, 10))[:, ::2]):
        with pytest.raises(CallError, match="input ids is not contiguous"):
            result.module(other)


def test_a_layout_the_graph_cannot_view_is_refused_by_name(agree: Agree) -> None:
    model = Flattened()
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.randn(6, 4)))])
    assert result.accepted
    call = ids().mT.contiguous().mT, torch.randn(6, 4)
    for one, other in zip(model(*call), result.module(*call), strict=True):
        agree(one, other)
    with pytest.raises(CallError, match="input hidden is not contiguous"):
        result.module(ids(), torch.randn(4, 6).mT)


def test_layouts_that_mean_the_same_are_admitted(agree: Agree) -> None:
    model = Scores()
    model.forward = lambda ids, hidden: model.scores(ids) + hidden  # type: ignore[assignment,misc]
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.randn(5, 4)))])
    assert result.accepted
    for call in ((ids().mT.contiguous().mT, torch.randn(4, 5).mT), (ids()[:1].expand(3, 5), torch.randn(5, 8)[:, ::2])):
        agree(model(*call), result.module(*call))


def test_a_layout_that_only_outputs_take_over_is_admitted(agree: Agree) -> None:
    """The original's output is contiguous whatever its ids are."""
    model = Scores()
    model.register_buffer("order", torch.randperm(VOCABULARY))
    model.forward = lambda ids: model.scores(model.order[ids])  # type: ignore[assignment,misc,operator]
    result = foldfx.compile(model, [foldfx.Example((ids(),))])
    assert result.accepted
    call = ids().mT.contiguous().mT
    agree(model(call), result.module(call).contiguous())


def test_a_number_of_dimensions_that_no_example_had_is_refused(agree: Agree) -> None:
    """Of an input beside the ids, which export checks no more than theirs."""
    model = Scores()
    model.forward = lambda ids, by: model.scores(ids) * by if by.dim() == 0 else model.scores(ids) + by  # type: ignore[assignment,misc]
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.tensor(2.0)))])
    assert result.accepted
    call = ids(), torch.tensor(3.0)
    agree(model(*call), result.module(*call))
    with pytest.raises(CallError, match=r"the inputs have \(2, 1\) dimensions.*\(2, 0\)"):
        result.module(ids(), torch.randn(4))


def test_ids_may_have_the_numbers_of_dimensions_tried_beside_inputs_that_keep_theirs(agree: Agree) -> None:
    model = Scores()
    model.forward = lambda ids, hidden: model.scores(ids) + hidden  # type: ignore[assignment,misc]
    result = foldfx.compile(model, [foldfx.Example((ids(), torch.randn(4)))])
    assert result.accepted
    for shape in ((), (6,), (2, 3), (2, 3, 2)):
        call = torch.randint(VOCABULARY, shape), torch.randn(4)
        agree(model(*call), result.module(*call))
    with pytest.raises(CallError, match=r"the inputs have \(1, 2\) dimensions"):
        result.module(torch.randint(VOCABULARY, (5,)), torch.randn(5, 4))


def test_numbers_of_dimensions_that_examples_have_are_admitted(agree: Agree) -> None:
    model = Scores()
    model.forward = lambda ids, hidden: model.scores(ids).sum((0, 1)) + hidden.sum()  # type: ignore[assignment,misc]
    calls = (ids(), torch.randn(4)), (ids(), torch.randn(4, 2))
    result = foldfx.compile(model, [foldfx.Example(call) for call in calls])
    assert result.accepted
    for call in calls:
        agree(model(*call), result.module(*call))
    with pytest.raises(CallError, match=r"the inputs have \(2, 3\) dimensions.*\(2, 1\), \(2, 2\)"):
        result.module(ids(), torch.randn(4, 2, 1))
