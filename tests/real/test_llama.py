"""A Llama with a tied head and a real vocabulary is refused with the arithmetic; one with eight tokens folds."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx

transformers = pytest.importorskip("transformers")
HIDDEN, SHAPES = 64, ((2, 6), (1, 4))


def llama(vocabulary: int, tied: bool) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).eval()  # type: ignore[no-any-return]


def examples(vocabulary: int) -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(vocabulary, shape),)) for shape in SHAPES]


def figures(text: str) -> set[int]:
    return {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", text)}


def nbytes(state: dict[str, Tensor], names: set[str]) -> int:
    return sum(state[name].numel() * state[name].element_size() for name in names)


VOCABULARY = 4096


@pytest.fixture(scope="module")
def refused() -> tuple[nn.Module, foldfx.Result]:
    model = llama(VOCABULARY, tied=True)
    return model, foldfx.compile(model, examples(VOCABULARY)[:1], dynamic=False)


def test_a_tied_head_over_4096_tokens_is_left_alone(refused: tuple[nn.Module, foldfx.Result]) -> None:
    model, result = refused
    assert (result.status, result.accepted) == ("unchanged", False)
    assert result.module.state_dict().keys() == model.state_dict().keys()
    ids = torch.randint(VOCABULARY, SHAPES[0])
    with torch.no_grad():
        original, folded = model(ids), result.module(ids)
    assert type(folded) is type(original)
    assert torch.equal(folded.logits, original.logits)


def test_the_head_stays_tied(refused: tuple[nn.Module, foldfx.Result]) -> None:
    _, result = refused
    state = result.module.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()


def test_the_refusal_gives_the_arithmetic(refused: tuple[nn.Module, foldfx.Result]) -> None:
    """Bytes of the tables it considered, from the shapes of the values; bytes that would go, from the state dict."""
    model, result = refused
    (outcome,) = [each for each in result.report.to_dict()["outcomes"] if each["status"] == "refused"]
    program = foldfx.capture(model, examples(VOCABULARY)[0].args, dynamic=False)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.name in outcome["nodes"]}
    assert values
    row_bytes = sum(value.numel() * value.element_size() // prod(SHAPES[0]) for value in values.values())
    state = model.state_dict()
    freed = set(outcome["figures"]["freed"])
    stated = figures(outcome["reason"])
    assert VOCABULARY * row_bytes in stated
    assert nbytes(state, freed) in stated
    assert freed <= {name for name in state if "self_attn" in name or "input_layernorm" in name}
    assert VOCABULARY * row_bytes > nbytes(state, freed)


def test_a_table_of_eight_tokens_pays() -> None:
    model = llama(8, tied=False)
    result = foldfx.compile(model, examples(8))
    assert (result.status, result.accepted) == ("accepted", True)
    report: dict[str, Any] = result.report.to_dict()
    assert report["storage"]["after"]["logical"] < report["storage"]["before"]["logical"]
    gone = {f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv"}
    assert not gone & result.module.state_dict().keys()
    for shape in ((3, 5), (1, 7)):
        ids = torch.randint(8, shape)
        with torch.no_grad():
            original, folded = model(ids).logits, result.module(ids).logits
        error = (folded.double() - original.double()).abs()
        assert error.max() <= 1e-5
        assert error.norm() <= 1e-5 * original.double().norm()
