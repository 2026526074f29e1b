"""magika's trained classifier: the fold stops where a norm takes its statistics over positions, and says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import foldfx
from foldfx.examples import magika as example
from foldfx.examples.magika import BYTE_VALUES, BYTE_WIDTH, BYTES, PADDING, Classifier

MIXES = "it would mix the rows of different tokens"


@pytest.fixture(scope="module")
def result(magika: Classifier) -> foldfx.Result:
    return foldfx.compile(magika, example.classifier_examples())


@pytest.fixture(scope="module")
def facts(magika: Classifier) -> foldfx.Facts:
    return foldfx.analyze(magika, *example.classifier_examples()[0])


def test_bytes_of_the_token_only_block(result: foldfx.Result) -> None:
    """The table is as wide as the embedding, so the bias is what is saved."""
    assert result.status == "accepted"
    (rewrite,) = result.report.to_dict()["rewrites"]
    assert (rewrite["bytes_before"], rewrite["bytes_after"]) == (66_048, 65_792)
    assert 4 * (BYTE_VALUES * BYTE_WIDTH + BYTE_WIDTH) == 66_048
    assert 4 * BYTE_VALUES * BYTE_WIDTH == 65_792


def test_the_fold_stops_before_the_norm_over_positions(result: foldfx.Result, magika: Classifier) -> None:
    kept = result.module.state_dict().keys()
    assert set(magika.state_dict()) - kept == {"embedding.weight", "byte_bias"}
    blockers = [text for text in result.report.to_dict()["blockers"] if text.startswith("layer_norm (")]
    assert len(blockers) == 1
    assert MIXES in blockers[0]
    assert "layer_norm" in result.module.code
    assert "gelu" in result.module.code
    assert result.module.code.count("aten.gelu") == 1


def test_explain_says_why(facts: foldfx.Facts) -> None:
    text = facts.explain("layer_norm")
    assert "aten.layer_norm.default over dimension 2 of transpose" in text
    assert MIXES in text
    assert "module position_norm" in text
    assert "magika.py:" in text
    assert not facts[facts.node("layer_norm")].token_only


def test_what_is_before_the_norm_is_proved(facts: foldfx.Facts) -> None:
    """The twin: bias, GELU and the grouping of four bytes see one byte at a time."""
    for name in ("embedding", "gelu", "transpose"):
        assert facts[facts.node(name)].token_only
        assert MIXES not in facts.explain(name)


def files(batch: int) -> Tensor:
    ids = torch.randint(PADDING, (batch, BYTES))
    ids[0, BYTES // 2 :] = PADDING
    return ids


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_probabilities_agree(magika: Classifier, result: foldfx.Result, batch: int, dtype: torch.dtype) -> None:
    ids = files(batch).to(dtype)
    original, folded = magika(ids), result.module(ids)
    error = (folded.double() - original.double()).abs()
    assert error.max() <= 1e-5
    assert error.norm() <= 1e-5 * original.double().norm()
    assert torch.equal(folded.argmax(-1), original.argmax(-1))


def test_a_file_of_one_byte_value_throughout(magika: Classifier, result: foldfx.Result) -> None:
    for token in (0, PADDING):
        ids = torch.full((1, BYTES), token)
        original, folded = magika(ids), result.module(ids)
        error = (folded.double() - original.double()).abs()
        assert error.max() <= 1e-5
        assert error.norm() <= 1e-5 * original.double().norm()


def test_another_length_is_refused_as_before(magika: Classifier, result: foldfx.Result) -> None:
    ids = torch.zeros(1, BYTES - 4, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        magika(ids)
    with pytest.raises((RuntimeError, AssertionError)):
        result.module(ids)
