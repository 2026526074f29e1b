"""Folded values whose token axes lie anywhere: heads, merged batches, permuted features, static groups of positions.

Each body goes on computing after it has moved its axes, then mixes positions, so that a wrong row shows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx

VOCABULARY, WIDTH, HEADS, HEAD = 13, 64, 4, 16
Agree = Callable[..., None]
Body = Callable[[Tensor], Tensor]


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.project = nn.Linear(32, WIDTH)
        self.body = body
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.project(self.embedding(ids)))


def heads(x: Tensor) -> Tensor:
    """[B, T, 64] → [B, 4, T, 16]."""
    return torch.softmax(x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2), -1).cumsum(2)


def merged(x: Tensor) -> Tensor:
    """[B, T, 64] → [B·T, 64]."""
    return torch.softmax(x.flatten(0, 1), -1).cumsum(0)


def merged_the_other_way(x: Tensor) -> Tensor:
    """[B, T, 64] → [T·B, 64], so rows change places."""
    return torch.softmax(x.transpose(0, 1).flatten(0, 1), -1).cumsum(0)


def features_first(x: Tensor) -> Tensor:
    """[B, T, 64] → [64, T, B]."""
    return torch.softmax(x.permute(2, 1, 0), 0).cumsum(1)


def heads_in_the_batch(x: Tensor) -> Tensor:
    """[B, T, 64] → [B·4, T, 16], as batched matrix products take them."""
    apart = x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2)
    return torch.softmax(apart.flatten(0, 1), -1).cumsum(1)


def heads_before_the_batch(x: Tensor) -> Tensor:
    """[B, T, 64] → [4·B, T, 16]: a feature is the outer factor of a merged dimension."""
    apart = x.view(*x.shape[:2], HEADS, HEAD).permute(2, 0, 1, 3)
    return torch.softmax(apart.flatten(0, 1), -1).cumsum(1)


def single(x: Tensor) -> Tensor:
    """[B, T, 64] → [1, B, T, 1, 64]."""
    return torch.softmax(x[None, :, :, None], -1).cumsum(2)


def one_feature(x: Tensor) -> Tensor:
    """[B, T, 64] → [B, T]."""
    return x.square().mean(-1).cumsum(1)


def no_feature(x: Tensor) -> Tensor:
    """[B, T, 64] → [B, T, 0]: nothing to tabulate, whatever is computed of it."""
    nothing = torch.tanh(x)[..., :0].square()
    return torch.cat([nothing, (nothing > 0).cumsum(1), x.cumsum(1)], -1)


BODIES = (heads, merged, merged_the_other_way, features_first, heads_in_the_batch, heads_before_the_batch, single, one_feature)


@pytest.mark.parametrize("body", [*BODIES, no_feature])
def test_symbolic_token_axes(body: Body, agree: Agree) -> None:
    model = Model(body)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))])
    assert result.accepted
    for shape in ((3, 5), (1, 7), (4, 1), (2, 6)):
        ids = torch.randint(VOCABULARY, shape)
        agree(model(ids), result.module(ids))


def groups(x: Tensor) -> Tensor:
    """[2, 6, 64] → [2, 3, 2·64]: two neighbouring tokens side by side, each still on its own."""
    return torch.tanh(x).reshape(2, 3, -1).sigmoid().cumsum(1)


def groups_apart(x: Tensor) -> Tensor:
    """[2, 6, 64] → [2, 64, 3, 2]."""
    return torch.tanh(x).reshape(2, 3, 2, -1).permute(0, 3, 1, 2).sigmoid().cumsum(2)


@pytest.mark.parametrize("body", [*BODIES, groups, groups_apart, no_feature])
def test_static_token_axes(body: Body, agree: Agree) -> None:
    model = Model(body)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (2, 6)),))], dynamic=False)
    assert result.accepted
    for _ in range(3):
        ids = torch.randint(VOCABULARY, (2, 6))
        agree(model(ids), result.module(ids))


def over_positions(x: Tensor) -> Tensor:
    return torch.softmax(x.transpose(1, 2), -1)


def over_two_tokens(x: Tensor) -> Tensor:
    return torch.softmax(x.reshape(2, 3, -1), -1)


def over_features_and_batch(x: Tensor) -> Tensor:
    return torch.softmax(x.permute(1, 0, 2).flatten(1), -1)


@pytest.mark.parametrize("body", [over_positions, over_two_tokens, over_features_and_batch])
def test_the_same_moves_with_a_mix_are_not_token_only(body: Body, agree: Agree) -> None:
    """The twin: a softmax over a dimension that holds a token axis stays in the graph, and what is before it folds."""
    model, ids = Model(body), torch.randint(VOCABULARY, (2, 6))
    facts = foldfx.analyze(model, (ids,), dynamic=False)
    assert not facts[facts.node("softmax")].token_only
    assert "it would mix the rows of different tokens" in facts.explain("softmax")
    result = foldfx.compile(model, [foldfx.Example((ids,))], dynamic=False)
    assert result.accepted
    assert "softmax" in result.module.code
    agree(model(ids), result.module(ids))


@pytest.mark.parametrize("body", BODIES[:-1])
def test_the_moves_themselves_are_token_only(body: Body) -> None:
    facts = foldfx.analyze(Model(body), (torch.randint(VOCABULARY, (2, 6)),), dynamic=False)
    assert facts[facts.node("softmax")].token_only
