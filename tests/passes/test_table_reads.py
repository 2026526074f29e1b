"""Every way of reading a table by id: indexing, index_select, gather, a one-hot product; and ids outside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import foldfx
from foldfx.passes.verification import probing

VOCABULARY, WIDTH = 12, 32
Agree = Callable[..., None]
Read = Callable[[Tensor, Tensor], Tensor]


def indexing(weight: Tensor, ids: Tensor) -> Tensor:
    return weight[ids]


def index_select(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.index_select(0, ids)


def gather(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.gather(0, ids.unsqueeze(-1).expand(-1, WIDTH))


def gather_contiguous(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.gather(0, ids.unsqueeze(-1).expand(-1, WIDTH).contiguous())


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    return functional.embedding(ids, weight, padding_idx=3)


def one_hot(weight: Tensor, ids: Tensor) -> Tensor:
    return functional.one_hot(ids, VOCABULARY).to(weight.dtype) @ weight


class Model(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.project = nn.Linear(WIDTH, 8)
        self.read = read
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.project(self.read(self.weight, ids))).cumsum(0)


def fold(read: Read) -> tuple[nn.Module, nn.Module]:
    model = Model(read)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (6,)),))])
    assert result.accepted
    assert "weight" not in result.module.state_dict()
    return model, result.module


@pytest.mark.parametrize("read", [embedding, indexing, index_select, gather, gather_contiguous, one_hot])
def test_agrees_in_the_domain_and_raises_alike_outside(read: Read, agree: Agree) -> None:
    model, folded = fold(read)
    for size in (6, 1, 9):
        ids = torch.randint(VOCABULARY, (size,))
        agree(model(ids), folded(ids))
    for outside in (VOCABULARY, VOCABULARY + 7, -VOCABULARY - 1):
        ids = torch.tensor([0, outside, 1])
        with pytest.raises((IndexError, RuntimeError)) as original:
            model(ids)
        with pytest.raises(original.type):
            folded(ids)


def test_negative_ids_count_from_the_end_where_they_did(agree: Agree) -> None:
    model, folded = fold(indexing)
    ids = torch.tensor([-1, 0, -VOCABULARY, 5, -4])
    agree(model(ids), folded(ids))


@pytest.mark.parametrize("read", [embedding, indexing, index_select, gather_contiguous])
def test_int32_ids_where_int64_was_captured(read: Read, agree: Agree) -> None:
    model, folded = fold(read)
    ids = torch.randint(VOCABULARY, (9,), dtype=torch.int32)
    agree(model(ids), folded(ids))


@pytest.mark.parametrize("read", [embedding, gather, one_hot])
def test_negative_ids_raise_where_they_did(read: Read) -> None:
    """The twin: these reads do not wrap, so neither may the table."""
    model, folded = fold(read)
    ids = torch.tensor([0, -1])
    with pytest.raises((IndexError, RuntimeError)) as original:
        model(ids)
    with pytest.raises(original.type):
        folded(ids)


def test_ids_that_wrap_in_a_longer_table_never_return_another_value() -> None:
    """-1 is the last row of the longer table and the last id of the shorter one: the fold may raise, not disagree."""

    class TwoLengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.short, self.long = nn.Parameter(torch.randn(VOCABULARY, WIDTH)), nn.Parameter(torch.randn(20, WIDTH))
            self.project = nn.Linear(WIDTH, 8)

        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.project(self.short[ids] * self.long[ids]))

    model = TwoLengths().eval()
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (6,)),))])
    assert result.accepted
    assert model(torch.tensor([-1])).isfinite().all()
    with pytest.raises(IndexError):
        result.module(torch.tensor([-1]))


NUMBERS: dict[str, Read] = {
    "only looked up": lambda weight, ids: weight[ids],
    "compared": lambda weight, ids: torch.where((ids == -5)[..., None], 0.0, weight[ids]),
    "looked up and counted": lambda weight, ids: weight[ids] + weight[ids // 4],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_negative_id_that_is_also_computed_with_is_another_number_than_its_row(name: str, agree: Agree) -> None:
    """Row 7 of 12 and id -5: the same row to an index, but not to a comparison."""
    model, folded = fold(NUMBERS[name])
    ids = torch.tensor([0, -5, 1])
    if name == "only looked up":
        agree(model(ids), folded(ids))
        return
    assert model(ids).shape == (3, 8)
    with pytest.raises(IndexError):
        folded(ids)


@pytest.mark.parametrize("fatal", [True, False])
def test_ids_outside_the_domain_are_not_tried_where_they_end_the_process(fatal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do on CUDA; here the CPU stands in for it."""
    monkeypatch.setattr(probing, "FATAL", ("cpu",) if fatal else ())
    honest, tried = probing.first_replaced, []
    monkeypatch.setattr(probing, "first_replaced", lambda ids, bad: tried.append(bad) or honest(ids, bad))
    result = foldfx.compile(Model(indexing), [foldfx.Example((torch.randint(VOCABULARY, (6,)),))])
    assert result.accepted
    probes = result.report.to_dict()["verification"]["probes"]
    assert ("ids outside the domain" in probes) is fatal
    assert set(tried) == (set() if fatal else {VOCABULARY, -1, -VOCABULARY - 1})
