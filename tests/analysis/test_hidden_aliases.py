"""What an operation hands on unchanged is the same memory in the graph, too: writes in place reach it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import foldfx

Hand = Callable[[Tensor], Tensor]
IDS = torch.tensor([[0, 1, 2], [3, 4, 6]])


class Model(nn.Module):
    """A value, what an operation makes of it, and a write into the value."""

    def __init__(self, hand: Hand) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 64), nn.Linear(64, 8)
        self.hand = hand
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        value = self.project(self.embedding(ids))
        handed = self.hand(value)[..., 1:]
        value.relu_()
        return value, handed


SHARED: dict[str, Hand] = {
    "functional.dropout": lambda x: functional.dropout(x, 0.5, False),
    "torch.dropout by name": lambda x: torch.dropout(x, p=0.5, train=False),
    "Dropout": nn.Dropout(0.1).eval(),
    "Dropout1d": nn.Dropout1d(0.1).eval(),
    "AlphaDropout": nn.AlphaDropout(0.1).eval(),
    "einsum": lambda x: torch.einsum("btn->nbt", x).permute(1, 2, 0),
    "einsum with an ellipsis": lambda x: torch.einsum("...n -> n...", x).movedim(0, -1),
    "type_as": lambda x: x.type_as(x),
    "to": lambda x: x.to(torch.float32),
    "reshape": lambda x: x.reshape(x.shape),
    "einsum of a diagonal": lambda x: torch.einsum("bii->bi", x[..., :3]),
    "einsum of a diagonal with an ellipsis": lambda x: torch.einsum("...ii->i...", x[..., :3]).movedim(0, -1),
}
COPIED: dict[str, Hand] = {
    "einsum that computes": lambda x: torch.einsum("btn,btn->btn", x, torch.ones(())[None, None, None]),
    "einsum of one operand that sums": lambda x: torch.einsum("btn->bt", x)[..., None].expand_as(x),
    "nan_to_num": lambda x: x.nan_to_num(),
    "cat of one": lambda x: torch.cat([x]),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_write_reaches_what_shares_memory(name: str) -> None:
    model = Model(SHARED[name])
    value, handed = model(IDS)
    assert handed.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    agrees(model)


@pytest.mark.parametrize("name", COPIED)
def test_a_write_does_not_reach_a_copy(name: str) -> None:
    model = Model(COPIED[name])
    value, handed = model(IDS)
    assert handed.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()
    agrees(model)


def agrees(model: nn.Module) -> None:
    result = foldfx.compile(model, [foldfx.Example((IDS,))])
    for ids in (IDS, torch.arange(12).reshape(4, 3) % 7):
        with torch.no_grad():
            torch.testing.assert_close(result.module(ids), model(ids))


def test_an_output_beside_its_dropout_is_the_same_tensor() -> None:
    class Twice(Model):
        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            value = self.project(self.embedding(ids))
            return self.hand(value), value

    result = foldfx.compile(Twice(nn.Dropout(0.1).eval()), [foldfx.Example((IDS,))])
    one, other = result.module(IDS)
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
