"""Tables of every dtype: half, bfloat16, double; integers and booleans; rows with NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx

VOCABULARY = 14
Agree = Callable[..., None]


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 8)
        self.to(dtype).eval()

    def forward(self, ids: Tensor) -> object:
        return self.down(torch.relu(self.up(self.embedding(ids)))).flip(1)


class Choice(Model):
    """A float turned discrete: the table has one column, in the smallest integer dtype."""

    def __init__(self) -> None:
        super().__init__()
        del self.down

    def forward(self, ids: Tensor) -> object:
        return torch.relu(self.up(self.embedding(ids))).argmax(-1).flip(1)


class Flags(Model):
    """A boolean table next to a float one."""

    def forward(self, ids: Tensor) -> object:
        x = self.down(torch.relu(self.up(self.embedding(ids))))
        return {"flags": (x > 0).flip(1), "x": x.flip(1)}


def fold(model: nn.Module) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example((torch.arange(VOCABULARY).reshape(2, 7),))])
    assert result.accepted
    return result


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1.6e-2), (torch.float16, 2e-3)]
)
def test_float_tables(dtype: torch.dtype, limit: float, agree: Agree) -> None:
    model = Model(dtype)
    result = fold(model)
    assert {tensor.dtype for tensor in result.module.state_dict().values()} == {dtype}
    ids = torch.randint(VOCABULARY, (3, 5))
    agree(model(ids), result.module(ids), max_abs=limit, relative_l2=limit)


@pytest.mark.parametrize(("kind", "dtypes"), [(Choice, {torch.uint8}), (Flags, {torch.bool, torch.float32})])
def test_discrete_tables_are_exact(kind: type[Model], dtypes: set[torch.dtype], agree: Agree) -> None:
    model = kind()
    result = fold(model)
    assert {tensor.dtype for tensor in result.module.state_dict().values()} <= dtypes
    ids = torch.randint(VOCABULARY, (3, 5))
    agree(model(ids), result.module(ids))


def test_rows_with_nan_and_infinities() -> None:
    model = Model()
    with torch.no_grad():
        model.embedding.weight[3] = torch.nan
        model.embedding.weight[5] = torch.inf
        model.embedding.weight[6, 0] = -torch.inf
        model.down.weight.abs_()
    result = fold(model)
    ids = torch.arange(VOCABULARY)[None]
    reference, candidate = model(ids), result.module(ids)
    assert isinstance(reference, Tensor)
    assert torch.equal(reference.isnan(), candidate.isnan())
    assert torch.equal(reference.isinf(), candidate.isinf())
    assert reference.isnan().any()
    assert reference.isfinite().any()
    finite = reference.isfinite()
    error = (candidate[finite].double() - reference[finite].double()).abs()
    assert error.max() <= 1e-5
    assert error.norm() <= 1e-5 * reference[finite].double().norm()


class Signs(Model):
    """The region ends in ±0, and a reader behind it sees the sign."""

    def forward(self, ids: Tensor) -> Tensor:
        zeros = self.down(torch.relu(self.up(self.embedding(ids)))) * 0
        return torch.copysign(torch.ones(()), zeros.flip(1))


def test_signs_of_zero_survive() -> None:
    model = Signs()
    result = fold(model)
    ids = torch.arange(VOCABULARY)[None]
    assert model(ids).unique().tolist() == [-1, 1]
    assert torch.equal(model(ids), result.module(ids))
