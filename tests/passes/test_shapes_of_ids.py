"""Ids of every shape: empty, scalar, strided, int32, and other numbers of dimensions than the captured one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import foldfx
from foldfx.errors import CaptureError, ExampleError, TokenRankError

VOCABULARY = 13
Agree = Callable[..., None]


class Softmax(nn.Module):
    """Ids are its only input; `dim` decides whether it means the same for ids of another rank."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.project = nn.Linear(64, 8)
        self.dim = dim
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.softmax(self.project(self.embedding(ids)), dim=self.dim)


Folded = tuple[nn.Module, foldfx.Result]


def fold(model: nn.Module, *shape: int, dtype: torch.dtype = torch.int64) -> Folded:
    example = foldfx.Example((torch.randint(VOCABULARY, shape, dtype=dtype),))
    return model, foldfx.compile(model, [example])


@pytest.fixture(scope="module")
def pair() -> Folded:
    """Captured with ids [B, T]."""
    return fold(Softmax(-1), 3, 5)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 5), (4, 0), (0, 0), (), (7,), (0,), (2, 3, 4)], ids=str)
def test_ids_of_every_shape(pair: Folded, shape: tuple[int, ...], agree: Agree) -> None:
    model, result = pair
    assert result.accepted
    ids = torch.randint(VOCABULARY, shape)
    agree(model(ids), result.module(ids))


@pytest.mark.parametrize(
    "make",
    [lambda ids: ids.t(), lambda ids: ids[:, ::2], lambda ids: ids[::2], lambda ids: ids[0].expand(4, 6), lambda ids: ids[1:2]],
    ids=["transposed", "every other column", "every other row", "expanded", "one row"],
)
def test_strided_ids(pair: Folded, make: Callable[[Tensor], Tensor], agree: Agree) -> None:
    model, result = pair
    ids = make(torch.randint(VOCABULARY, (4, 6)))
    agree(model(ids), result.module(ids))


def test_int32_ids_where_int64_was_captured(pair: Folded, agree: Agree) -> None:
    model, result = pair
    ids = torch.randint(VOCABULARY, (3, 5), dtype=torch.int32)
    agree(model(ids), result.module(ids))


def test_int32_ids_as_captured(agree: Agree) -> None:
    model, result = fold(Softmax(-1), 3, 5, dtype=torch.int32)
    assert result.accepted
    for dtype in (torch.int32, torch.int64):
        ids = torch.randint(VOCABULARY, (3, 5), dtype=dtype)
        agree(model(ids), result.module(ids))


@pytest.mark.parametrize("shape", [(), (6,), (1, 6), (2, 3)], ids=str)
def test_a_capture_with_scalar_ids(shape: tuple[int, ...], agree: Agree) -> None:
    model, result = fold(Softmax(-1))
    assert result.accepted
    ids = torch.randint(VOCABULARY, shape)
    agree(model(ids), result.module(ids))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)], ids=str)
def test_a_capture_with_one_id(shape: tuple[int, ...], agree: Agree) -> None:
    """A decode step of one sentence: sizes of 1 are fixed, so tables are built one id at a time."""
    model, result = fold(Softmax(-1), *shape)
    assert result.accepted
    agree(model(torch.full(shape, 7)), result.module(torch.full(shape, 7)))
    assert {each["tokens"] for each in result.report.to_dict()["verification"]["layouts"]} == {VOCABULARY}
    with pytest.raises(AssertionError):
        result.module(torch.full((*shape[:-1], 2), 7))


def test_a_rank_that_means_something_else_is_refused() -> None:
    """softmax(dim=1) of ids [B] runs over features; of ids [B, T] it would run over positions."""
    model, result = fold(Softmax(1), 6)
    assert result.accepted
    assert result.report.to_dict()["verification"]["ranks"] == {"ids": [1]}
    ids = torch.randint(VOCABULARY, (2, 3))
    assert model(ids).shape == (2, 3, 8)
    with pytest.raises(TokenRankError, match=r"2 dimensions.*verified for \[1\]"):
        result.module(ids)


def test_a_rank_that_was_verified_is_admitted(pair: Folded) -> None:
    """The twin of the refusal: softmax(dim=-1) runs over features whatever the rank."""
    _, result = pair
    assert result.report.to_dict()["verification"]["ranks"] == {"ids": [0, 1, 2, 3]}
    with pytest.raises(TokenRankError, match="4 dimensions"):
        result.module(torch.zeros(1, 1, 1, 1, dtype=torch.int64))


class Mean(Softmax):
    """Over a dimension of size 1 a mean changes nothing, and none shows in another rank that is 1 there, too."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.embedding(ids)).mean(self.dim, keepdim=True)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 7)], ids=str)
def test_a_rank_of_which_an_example_of_size_1_shows_nothing_is_refused(shape: tuple[int, ...], agree: Agree) -> None:
    model, result = fold(Mean(-1 - len(shape)), *shape)
    assert result.accepted
    assert result.report.to_dict()["verification"]["ranks"] == {"ids": [len(shape)]}
    ids = torch.randint(VOCABULARY, shape)
    agree(model(ids), result.module(ids))
    with pytest.raises(TokenRankError):
        result.module(ids[None])


class OneIsSpecial(Softmax):
    """One sentence means something else; a capture for sizes from 2 on has only the other branch."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).cumsum(1) * (2.0 if ids.shape[0] == 1 else 1.0)


@pytest.mark.parametrize("size", [Dim.AUTO, Dim("size", min=2)], ids=["AUTO", "from 2 on"])
def test_a_size_below_the_captured_range_is_refused(size: Any, agree: Agree) -> None:
    """Export itself does not check that a size it took for 2 or more is."""
    model = OneIsSpecial(-1)
    example = foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))
    result = foldfx.compile(model, [example], dynamic={"ids": {0: size}})
    assert result.accepted
    for count in (2, 6):
        ids = torch.randint(VOCABULARY, (count, 5))
        agree(model(ids), result.module(ids))
    with pytest.raises(AssertionError, match="ids has size 1 in dimension 0; this program was captured for sizes from 2 on"):
        result.module(torch.randint(VOCABULARY, (1, 5)))


FROM_TWO = {"ids": {0: Dim("size", min=2), 1: Dim.AUTO}}


class NoOneIsSpecial(Softmax):
    """The twin: both branches mean the same, but export takes only one of them along."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).cumsum(1) * (1 if ids.shape[0] == 1 else 1.0)


@pytest.mark.parametrize("shown", [1, 2])
def test_a_size_below_the_captured_range_is_admitted_where_an_example_has_it(shown: int, agree: Agree) -> None:
    model = NoOneIsSpecial(-1)
    calls = [foldfx.Example((torch.randint(VOCABULARY, (count, 5)),)) for count in (3, shown)]
    result = foldfx.compile(model, calls, dynamic=FROM_TWO)
    assert result.accepted
    one = torch.randint(VOCABULARY, (1, 4))
    if shown == 1:
        agree(model(one), result.module(one))
    else:
        with pytest.raises(AssertionError, match="Capture it with dynamic=True, or give an example of that size"):
            result.module(one)
    with pytest.raises(AssertionError, match="ids has size 0 in dimension 0"):
        result.module(torch.randint(VOCABULARY, (0, 5)))


def test_an_example_below_the_captured_range_that_differs_is_found() -> None:
    calls = [foldfx.Example((torch.randint(VOCABULARY, (count, 5)),)) for count in (3, 1)]
    with pytest.raises(CaptureError, match="the captured graph itself differs from the model"):
        foldfx.compile(OneIsSpecial(-1), calls, dynamic=FROM_TWO)


class Recurrent(Softmax):
    """A Python loop over the positions, which fixes their number at capture."""

    def forward(self, ids: Tensor) -> Tensor:
        features = super().forward(ids)
        state = features[:, 0]
        for place in range(1, ids.shape[1]):
            state = state * 0.5 + features[:, place]
        return state


def test_examples_of_sizes_that_the_model_loops_over_are_refused_by_name(agree: Agree) -> None:
    model = Recurrent(-1)
    calls = [foldfx.Example((torch.randint(VOCABULARY, shape),)) for shape in ((3, 5), (2, 4), (2, 5))]
    with pytest.raises(
        ExampleError,
        match=r"example 1 is no call that the captured graph covers: .*== 5\. Fixed at capture: ids: dimension 1 is 5",
    ):
        foldfx.compile(model, calls)
    result = foldfx.compile(model, [calls[0], calls[2]])
    assert result.accepted
    agree(model(ids := torch.randint(VOCABULARY, (7, 5))), result.module(ids))
    with pytest.raises(AssertionError, match=r"== 5; .* compile with an example of such a call"):
        result.module(torch.randint(VOCABULARY, (3, 4)))


class WithHidden(Softmax):
    """Another input is laid out [B, 8], so ids of another rank need it in another rank, too."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return super().forward(ids) * hidden


def test_a_rank_that_another_input_fixes_is_refused(agree: Agree) -> None:
    model = WithHidden(-1)
    example = foldfx.Example((torch.randint(VOCABULARY, (5,)), torch.randn(5, 8)))
    result = foldfx.compile(model, [example])
    assert result.accepted
    agree(model(*example.args), result.module(*example.args))
    with pytest.raises((TokenRankError, AssertionError)):
        result.module(torch.zeros(5, 5, dtype=torch.int64), torch.randn(5, 8))


class Weighted(Softmax):
    """Another input has a number for each id, whatever the rank."""

    def forward(self, ids: Tensor, weight: Tensor) -> Tensor:
        return super().forward(ids).amax(-1) * weight


@pytest.mark.parametrize(("count", "ranks"), [(1, [1]), (2, [1, 2, 3]), (5, [1, 2, 3])])
def test_a_rank_is_admitted_where_every_input_has_rows_that_differ(count: int, ranks: list[int], agree: Agree) -> None:
    model = Weighted(-1)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (count,)), torch.randn(count)))])
    assert result.accepted
    assert result.report.to_dict()["verification"]["ranks"] == {"ids": ranks}
    for shape in ((count,), *([(1, 4), (3, 1, 5)] if len(ranks) > 1 else [])):
        call = torch.randint(VOCABULARY, shape), torch.randn(shape)
        agree(model(*call), result.module(*call))


class Repeats(Softmax):
    """`repeat(1, 1, 2)` wants ids [B, T]; with ids [B] it would add a dimension."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.embedding(ids).repeat(1, 1, 2)[..., 32:96])


def test_an_operation_that_adds_a_dimension_in_another_rank(agree: Agree) -> None:
    model, result = fold(Repeats(-1), 3, 5)
    assert result.accepted
    ids = torch.randint(VOCABULARY, (2, 4))
    agree(model(ids), result.module(ids))


class Heads(Softmax):
    """A view with an inferred size, which no reshape of ids without elements can infer."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.embedding(ids)).view(*ids.shape, 2, -1).softmax(-1)


def test_a_model_that_cannot_run_on_empty_ids(agree: Agree) -> None:
    model, result = fold(Heads(-1), 3, 5)
    assert result.accepted
    ids = torch.randint(VOCABULARY, (2, 4))
    agree(model(ids), result.module(ids))
    with pytest.raises(RuntimeError, match="ambiguous"):
        model(ids[:0])


class Pairs(Softmax):
    """The graph divides by the number of tokens to tell how many pairs there are; torch itself does not."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).view(-1, 2, 8).cumsum(1)


def test_a_size_at_which_the_captured_graph_alone_fails_is_refused(agree: Agree) -> None:
    model, result = fold(Pairs(-1), 3, 4)
    assert result.accepted
    found = result.report.to_dict()["specialised"]
    assert found == [
        {
            "input": "ids",
            "what": "dimension 1 is at least 1: the captured graph raised ZeroDivisionError at 0, the model did not",
        }
    ]
    ids = torch.randint(VOCABULARY, (1, 6))
    agree(model(ids), result.module(ids))
    with pytest.raises(AssertionError, match="ids has size 0 in dimension 1; this program was captured for sizes from 1 on"):
        result.module(ids[:, :0])


class Padded(Softmax):
    """As `Pairs`, by the views that torch itself makes of a padding mask."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return self.attention(x, x, x, key_padding_mask=ids == 0, need_weights=False)[0].contiguous()


def test_attention_with_a_padding_mask_is_folded(agree: Agree) -> None:
    model, result = fold(Padded(), 3, 5)
    assert result.accepted
    ids = torch.randint(1, VOCABULARY, (4, 6))
    ids[1:, 3:] = 0
    agree(model(ids), result.module(ids))
    agree(model(ids[:1]), result.module(ids[:1]))
    with pytest.raises(AssertionError, match="ids has size 0 in dimension 0"):
        result.module(ids[:0])


class AnotherValueOfNone(Softmax):
    """The twin: for no tokens the captured graph does not fail, but returns something else."""

    def forward(self, ids: Tensor) -> Tensor:
        total = super().forward(ids).sum(1)
        return total if ids.numel() or torch.compiler.is_exporting() else total + 1


def test_a_size_at_which_the_captured_graph_returns_something_else_is_a_capture_error() -> None:
    with pytest.raises(CaptureError, match=r"example 0 with size s\d+ = 0"):
        fold(AnotherValueOfNone(-1), 3, 4)
