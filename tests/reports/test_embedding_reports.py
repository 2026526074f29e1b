"""Public reports on what an embedding does beyond a gather, and on which ids there are, each under its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError, TokenInputError, UnreachableTokenError

Block = Callable[..., Any]
Fold = Callable[..., foldfx.Result]

VOCABULARY, WIDTH = 11, 32


def rows(self: Any, ids: Tensor) -> Tensor:
    return self.rows(ids).cumsum(1)


RENORMALISED: dict[str, tuple[Callable[..., Any], str]] = {
    "as a module": (rows, r"module 'embedding' \(Embedding\) has max_norm=0\.1: .*renormalise the weight once"),
    "as a function": (
        lambda self, ids: F.embedding(ids, self.head.weight, max_norm=0.1),
        r"embedding_renorm.* renormalises an embedding's weight in forward \(max_norm\)",
    ),
}


@pytest.mark.parametrize("form", RENORMALISED)
def test_pytorch_26596_thunder_1699_torch_spyre_4320_R7_max_norm(form: str, block: Block, fold: Fold, ids: Tensor) -> None:
    """Looking up with max_norm rewrites the weight, in eval mode too: refused, and the weight is as it was."""
    forward, why = RENORMALISED[form]
    model = block(forward, embedding=nn.Embedding(VOCABULARY, WIDTH, max_norm=0.1 if form == "as a module" else None))
    before = model.embedding.weight.clone(), model.head.weight.clone()
    with pytest.raises(CaptureError, match=why):
        foldfx.compile(model, [foldfx.Example((ids % 3,))], dynamic=False)
    assert torch.equal(model.embedding.weight, before[0])
    assert torch.equal(model.head.weight, before[1])
    if form == "as a function":
        return
    with torch.no_grad():
        model.embedding.weight.renorm_(2, 0, 0.1)
    fold(block(rows, embedding=nn.Embedding.from_pretrained(model.embedding.weight)))


def test_pytorch_53447_R8_the_padding_row_need_not_be_zero(block: Block, fold: Fold) -> None:
    """padding_idx is about gradients alone: the row is folded as it is."""
    model = block(rows, embedding=nn.Embedding(VOCABULARY, WIDTH, padding_idx=2))
    with torch.no_grad():
        model.embedding.weight[2] = 1.0
    padding = torch.full((3, 5), 2)
    result = fold(model, (padding,), (padding,), (torch.randint(VOCABULARY, (3, 5)),))
    assert result.module(padding).abs().sum() > 0


def recovered(self: Any, embeds: Tensor) -> Tensor:
    found = (embeds[..., None, :] == self.embedding.weight).all(-1)
    return self.rows(found.int().argmax(-1))


def test_transformers_45874_45883_ids_recovered_from_embeddings(block: Block) -> None:
    """Ids found by comparing embeddings with the matrix are not an input: refused, and nothing of [T, V, E] is tabulated."""
    with pytest.raises(TokenInputError, match=r"no integer input indexes a table .*integer inputs: none"):
        foldfx.compile(block(recovered), [foldfx.Example((torch.randn(3, 5, WIDTH),))], dynamic=False)


class PerLayer(nn.Module):
    """Gemma-3n's inputs of each layer, in small: two lookups of one id, normed, scaled and added."""

    def __init__(self, precomputed: bool) -> None:
        super().__init__()
        self.words, self.per_layer = nn.Embedding(8, 64), nn.Embedding(8, 12)
        self.project, self.norm, self.precomputed = nn.Linear(64, 12, bias=False), nn.RMSNorm(4), precomputed
        self.eval()

    def inputs(self, ids: Tensor, embeds: Tensor) -> Tensor:
        projected = self.norm(self.project(embeds * 8.0).view(*ids.shape, 3, 4))
        return (projected + self.per_layer(ids).view(*ids.shape, 3, 4)) * 2**-0.5

    def forward(self, ids: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.words(ids)
        each = given if self.precomputed else self.inputs(ids, hidden)
        return hidden.cumsum(1), each.cumsum(1) + given


@pytest.mark.parametrize("precomputed", [False, True])
def test_transformers_45927_R21_inputs_of_each_layer(precomputed: bool, fold: Fold) -> None:
    """The whole of them is one table, its projection leaves; given from outside they are context, and nothing folds."""
    calls = [(torch.randint(8, (2, 5)), torch.randn(2, 5, 3, 4)) for _ in range(3)]
    result = fold(PerLayer(precomputed), *calls, accepted=not precomputed)
    gone = {"per_layer.weight", "project.weight", "norm.weight"} - result.module.state_dict().keys()
    assert gone == (set() if precomputed else {"per_layer.weight", "project.weight", "norm.weight"})


def test_R17_negative_ids_wrap_or_raise_as_before(block: Block, fold: Fold) -> None:
    """`table[-1]` is the last row, `embedding(-1)` an error: a folded lookup does what the one it replaces did."""
    last = torch.full((3, 5), -1)
    indexed = block(lambda self, ids: torch.tanh(self.project(self.embedding.weight[ids])))
    looked_up = block(lambda self, ids: self.rows(ids))
    folded = fold(indexed, (last % VOCABULARY,), (last,)).module
    assert torch.equal(folded(last), folded(last % VOCABULARY))
    for module in (looked_up, fold(looked_up).module):
        with pytest.raises(IndexError, match="index out of range"):
            module(last)


def test_megatron_6403_vocabulary_padded_beyond_the_tokenizer(block: Block, fold: Fold) -> None:
    """The tokenizer's ids are stated: tables hold only those, padded ids are refused by name, others raise as before."""
    model = block(rows)
    small = [(torch.randint(7, (3, 5)),) for _ in range(2)]
    stated = fold(model, *small, tokens=[foldfx.TokenInput("ids", reachable=range(7))]).module
    whole = fold(model).module
    padded, outside = torch.full((3, 5), 9), torch.full((3, 5), VOCABULARY)
    with pytest.raises(UnreachableTokenError, match="token input ids carries id 9"):
        stated(padded)
    whole(padded)
    for module in (model, stated, whole):
        with pytest.raises(IndexError):
            module(outside)
    with pytest.raises(TokenInputError, match=r"states a domain of 12 ids, but .* holds 11"):
        foldfx.compile(model, [foldfx.Example(small[0])], tokens=[foldfx.TokenInput("ids", domain=12)])


class Routes(nn.Module):
    """Numbers of experts by token, out of a table that does not fit a small float."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("route", torch.arange(384, dtype=dtype).flip(0).reshape(6, 64))
        self.embedding = nn.Embedding(6, 8)
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.route[ids].amax(-1) + 1, self.embedding(ids).cumsum(1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_mbridge_159_R11_vllm_40862_43596_integer_tables(dtype: torch.dtype, fold: Fold) -> None:
    """383 became 384 in bfloat16, and int32 met int64: tables of integers are exact, come out in the dtype that went in,
    and a cast of the module to bfloat16 leaves them alone."""
    model = Routes(dtype)
    calls = [(torch.randint(6, (3, 5)),) for _ in range(3)]
    result = fold(model, *calls)
    expected = model(*calls[0])[0]
    assert expected.dtype == dtype
    assert expected.max() >= 383
    for module in (result.module, result.module.bfloat16()):
        found = module(*calls[0])[0]
        assert found.dtype == dtype
        assert torch.equal(found, expected)


class Router(nn.Module):
    """R22, DeepSeek-V4's hash router in small: experts by token, weights by hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("experts", torch.randint(16, (7, 3)))
        self.embedding, self.scores, self.gate = nn.Embedding(7, 64), nn.Linear(64, 16), nn.Linear(8, 16, bias=False)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        learned = self.scores(self.embedding(ids)).topk(3, -1).indices
        weights = F.softplus(self.gate(hidden)).sqrt()
        return learned, self.experts[ids], weights.gather(-1, self.experts[ids])


def test_R22_experts_fold_and_their_weights_stay(fold: Fold) -> None:
    """Which experts is token-only; what each weighs is not."""
    calls = [(torch.randint(7, (2, 5)), torch.randn(2, 5, 8)) for _ in range(3)]
    model = Router()
    facts = foldfx.analyze(model, calls[0], dynamic=False)
    assert facts[facts.node("topk")].token_only
    assert not facts[facts.node("gather")].token_only
    state = fold(model, *calls).module.state_dict()
    assert "gate.weight" in state
    assert not {"embedding.weight", "scores.weight"} & state.keys()


def test_R18_experts_of_bfloat16_scores_are_the_model_s(fold: Fold) -> None:
    """Near ties in bfloat16 choose other experts than float32 would: the table holds the model's own choice."""
    model = Router().bfloat16()
    calls = [(torch.arange(7).reshape(1, 7), torch.randn(1, 7, 8).bfloat16())]
    learned = fold(model, *calls).module(*calls[0])[0]
    assert torch.equal(learned, model(*calls[0])[0])


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_R19_rows_that_round_by_batch_size(length: int, block: Block, agree: Callable[..., None]) -> None:
    """A product rounds otherwise for 1, 2 or 7 rows than for 64: all of them stay within the limits."""
    model = block(lambda self, ids: self.rows(ids))
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (length,)),))], dynamic=False)
    assert result.accepted
    agree(model, result.module, torch.randint(VOCABULARY, (length,)))
    assert result.report.data["verification"]["verdict"] == "equivalent_on"
