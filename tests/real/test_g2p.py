"""g2p-en, trained: both GRU steps fold to tables of input gates, and every word is pronounced as before."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.examples import g2p_en
from foldfx.examples.g2p_en import GRAPHEMES, PHONEMES, WIDTH, DecoderStep, EncoderStep

WORDS = g2p_en.random_words(1000, seed=7)
GATES = 3 * WIDTH


class Step(NamedTuple):
    model: nn.Module
    result: foldfx.Result
    tokens: int

    def leaves(self, *call: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Outputs of the original and of the folded step, pairwise."""
        both = [self.model(*call), self.result.module(*call)]
        original, folded = ((out,) if isinstance(out, Tensor) else out for out in both)
        return list(zip(original, folded, strict=True))


Steps = dict[str, Step]


@pytest.fixture(scope="module")
def steps(g2p: tuple[EncoderStep, DecoderStep]) -> Steps:
    """Nothing is declared by hand: the token inputs are inferred."""
    encoder, decoder = g2p
    return {
        "encoder": Step(encoder, foldfx.compile(encoder, g2p_en.encoder_examples()), len(GRAPHEMES)),
        "decoder": Step(decoder, foldfx.compile(decoder, g2p_en.decoder_examples()), len(PHONEMES)),
    }


sides = pytest.mark.parametrize("side", ["encoder", "decoder"])


@pytest.mark.parametrize(("side", "before", "after"), [("encoder", 819_200, 89_088), ("decoder", 865_280, 227_328)])
def test_bytes_of_the_folded_block(steps: Steps, side: str, before: int, after: int) -> None:
    step = steps[side]
    report = step.result.report.to_dict()
    assert step.result.status == "accepted"
    assert [(each["bytes_before"], each["bytes_after"]) for each in report["rewrites"]] == [(before, after)]
    assert before == 4 * (step.tokens * WIDTH + GATES * WIDTH + GATES)
    assert after == 4 * step.tokens * GATES
    assert report["tokens"]["ids"]["size"] == step.tokens
    assert not report["tokens"]["ids"]["stated"]
    storage = report["storage"]
    assert storage["before"]["logical"] - storage["after"]["logical"] == before - after
    assert not {"embedding.weight", "input_gates.weight", "input_gates.bias"} & step.result.module.state_dict().keys()


@sides
def test_complete_outputs_for_every_id(steps: Steps, side: str) -> None:
    step = steps[side]
    ids = torch.arange(step.tokens)
    for original, folded in step.leaves(ids, 2 * torch.rand(step.tokens, WIDTH) - 1):
        error = (folded.double() - original.double()).abs()
        assert error.max() <= 1e-5
        assert error.norm() <= 1e-5 * original.double().norm()


def test_a_known_word(steps: Steps) -> None:
    folded = g2p_en.pronounce(["embedding"], *(step.result.module for step in steps.values()))
    assert folded == [["EH0", "M", "B", "EH1", "D", "IH0", "NG"]]


def test_a_thousand_words_at_once(steps: Steps) -> None:
    original = g2p_en.pronounce(WORDS, *(step.model for step in steps.values()))
    folded = g2p_en.pronounce(WORDS, *(step.result.module for step in steps.values()))
    assert folded == original
    assert len({tuple(phonemes) for phonemes in original}) > 900


def test_a_thousand_words_one_by_one(steps: Steps) -> None:
    original = partial(g2p_en.pronounce, encoder=steps["encoder"].model, decoder=steps["decoder"].model)
    folded = partial(g2p_en.pronounce, encoder=steps["encoder"].result.module, decoder=steps["decoder"].result.module)
    with torch.no_grad():
        assert [word for word in WORDS if folded([word]) != original([word])] == []


@sides
@pytest.mark.parametrize("outside", ["size", "far above", "-1", "-size-1"])
def test_ids_outside_raise_what_they_raised(steps: Steps, side: str, outside: str) -> None:
    step = steps[side]
    token = {"size": step.tokens, "far above": 10**6, "-1": -1, "-size-1": -step.tokens - 1}[outside]
    call = torch.tensor([0, token, 1]), torch.zeros(3, WIDTH)
    with pytest.raises(IndexError) as original:
        step.model(*call)
    with pytest.raises(IndexError) as folded:
        step.result.module(*call)
    assert folded.type is original.type


@sides
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("batch", [0, 1, 2, 33])
def test_batches_of_every_size_and_integer_width(steps: Steps, side: str, dtype: torch.dtype, batch: int) -> None:
    step = steps[side]
    ids = torch.randint(step.tokens, (batch,), dtype=dtype)
    for original, folded in step.leaves(ids, 2 * torch.rand(batch, WIDTH) - 1):
        assert (folded.shape, folded.dtype) == (original.shape, original.dtype)
        error = (folded.double() - original.double()).abs()
        assert (error <= 1e-5).all()
        assert error.norm() <= 1e-5 * original.double().norm()


@sides
def test_ids_that_are_not_contiguous(steps: Steps, side: str) -> None:
    step = steps[side]
    wide = torch.randint(step.tokens, (6, 4))
    hidden = 2 * torch.rand(WIDTH, 6).t() - 1
    for ids in (wide[:, 1], wide.t()[0], wide[0, :1].expand(6)):
        for original, folded in step.leaves(ids, hidden):
            error = (folded.double() - original.double()).abs()
            assert error.max() <= 1e-5
            assert error.norm() <= 1e-5 * original.double().norm()
