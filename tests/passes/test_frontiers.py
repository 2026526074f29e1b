"""Several values to tabulate, and state that other readers keep in the program."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import foldfx

VOCABULARY, WIDTH = 11, 32
Agree = Callable[..., None]


def fold(model: nn.Module) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))])
    assert result.accepted
    return result


def tabulated(result: foldfx.Result) -> int:
    """How many values were tabulated, packed or not."""
    return sum(len(table["values"]) for rewrite in result.report.to_dict()["rewrites"] for table in rewrite["tables"])


class Attention(nn.Module):
    """Queries, keys and values leave the region together."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embedding(ids))
        q, k, v = (f(x).view(*ids.shape, 4, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Residual(Attention):
    """The attention's input is read once more behind it."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.embedding(ids)


class Tied(Attention):
    """The embedding's weight is also the head."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) @ self.embedding.weight.t()


class TwoReadings(nn.Module):
    """Two tables of different length, read with the same ids; ids of the smaller one are the domain."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(3 * VOCABULARY, WIDTH)
        self.project = nn.Linear(WIDTH, 8)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.project(self.short(ids) * self.long(ids))).cumsum(1)


def test_several_values(agree: Agree) -> None:
    model = Attention()
    result = fold(model)
    assert tabulated(result) == 3
    assert not result.module.state_dict().keys() & model.state_dict().keys()
    ids = torch.randint(VOCABULARY, (2, 7))
    agree(model(ids), result.module(ids))


def test_a_residual_reader_gets_what_it_reads(agree: Agree) -> None:
    """Whether the weight stays or a table takes its place, the bytes add up and the outputs agree."""
    model = Residual()
    result = fold(model)
    ids = torch.randint(VOCABULARY, (2, 7))
    agree(model(ids), result.module(ids))
    kept = sum(tensor.numel() * tensor.element_size() for tensor in result.module.state_dict().values())
    assert kept == 4 * VOCABULARY * WIDTH * 4


def test_a_tied_head_keeps_the_weight_and_shares_it(agree: Agree) -> None:
    model = Tied()
    result = fold(model)
    ids = torch.randint(VOCABULARY, (2, 7))
    agree(model(ids), result.module(ids))
    weight = result.module.state_dict()["embedding.weight"]
    assert weight.data_ptr() == model.embedding.weight.data_ptr()


def test_the_domain_is_the_smaller_table(agree: Agree) -> None:
    model = TwoReadings()
    result = fold(model)
    assert result.report.to_dict()["tokens"]["ids"]["size"] == VOCABULARY
    assert not result.module.state_dict().keys() & {"short.weight", "long.weight"}
    ids = torch.randint(VOCABULARY, (2, 7))
    agree(model(ids), result.module(ids))
