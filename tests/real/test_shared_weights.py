"""Layers that share weights and heads that share the embedding: transformers' ALBERT and GPT-2, tiny and random."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import foldfx

transformers = pytest.importorskip("transformers")
VOCABULARY, EMBEDDING, HIDDEN, LAYERS = 40, 8, 64, 3


class Albert(nn.Module):
    """ALBERT's encoder over word embeddings alone: with positions added, nothing behind them depends on the id alone."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        config = transformers.AlbertConfig(
            vocab_size=VOCABULARY,
            embedding_size=EMBEDDING,
            hidden_size=HIDDEN,
            intermediate_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_hidden_groups=groups,
            num_attention_heads=4,
            attn_implementation="sdpa",
        )
        albert = transformers.AlbertModel(config, add_pooling_layer=False)
        self.words, self.encoder = albert.embeddings.word_embeddings, albert.encoder
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(self.words(ids), attention_mask=None)[0]


class Gated(nn.Module):
    """GPT-2, whose head is the embedding, and a gate on its hidden states that the token's own row opens."""

    def __init__(self, gated: bool = True) -> None:
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16, use_cache=False, pad_token_id=None
        )
        self.gpt, self.gate = transformers.GPT2LMHeadModel(config), nn.Linear(32, 4) if gated else None
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.gpt(ids).logits
        if self.gate is None:
            return logits
        return logits * torch.sigmoid(self.gate(self.gpt.transformer.wte(ids))).mean(-1, keepdim=True)


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2, 6))


def fold(model: nn.Module) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example((tokens(),))], dynamic=False)
    compare(model, result.module)
    return result


def compare(model: nn.Module, other: nn.Module) -> None:
    """Max-abs and relative L2 within 1e-5, on tokens nobody has seen."""
    ids = tokens()
    with torch.no_grad():
        reference, found = model(ids).double(), other(ids).double()
    assert (found - reference).abs().max() <= 1e-5
    assert (found - reference).norm() <= 1e-5 * reference.norm()


def state_bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


PROJECTIONS = [f"attention.{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")]


def test_the_first_of_the_layers_that_share_their_weights_is_not_folded() -> None:
    """Tables of its queries, keys and values would free nothing: the layers behind it read the same weights."""
    model = Albert(groups=1)
    result = fold(model)
    assert result.status == "unchanged"
    assert result.module.state_dict().keys() == model.state_dict().keys()
    (outcome,) = result.report.to_dict()["outcomes"]
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    assert outcome["status"] == "refused"
    assert not {f"{layer}.{name}" for name in PROJECTIONS} & set(outcome["figures"]["freed"])
    for name in PROJECTIONS:
        (sentence,) = [part for part in outcome["reason"].split("; ") if part.startswith(f"{layer}.{name} stays: ")]
        assert "linear" in sentence


def test_the_first_of_layers_with_weights_of_their_own_is() -> None:
    """The residual goes on reading the embedding and its small projection."""
    model = Albert(groups=LAYERS)
    result = fold(model)
    first = "encoder.albert_layer_groups.0.albert_layers.0"
    gone = model.state_dict().keys() - result.module.state_dict().keys()
    assert gone == {f"{first}.{name}" for name in PROJECTIONS}
    freed, tables = 3 * (HIDDEN + 1) * HIDDEN, 3 * VOCABULARY * HIDDEN
    assert state_bytes(model) - state_bytes(result.module) == 4 * (freed - tables)


@pytest.mark.parametrize("gated", [True, False])
def test_a_head_that_is_the_embedding_survives_with_it(gated: bool) -> None:
    """GPT-2 adds positions to the embedding at once, so only what stands beside it folds."""
    model = Gated(gated)
    result = fold(model)
    assert result.accepted is gated
    state = result.module.state_dict()
    assert state["gpt.lm_head.weight"].data_ptr() == state["gpt.transformer.wte.weight"].data_ptr()
    assert state["gpt.lm_head.weight"].data_ptr() == model.gpt.lm_head.weight.data_ptr()
    assert model.state_dict().keys() - state.keys() == ({"gate.weight", "gate.bias"} if gated else set())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("into", ["another fold", "a deep copy"])
def test_a_folded_state_goes_through_safetensors(into: str, tmp_path: Path) -> None:
    """Saved once, strictly loaded into the fold of other weights or a spoilt copy: the same bits come out."""
    model = Gated()
    folded = fold(model).module
    save_model(folded, str(tmp_path / "folded.safetensors"))
    other = fold(Gated()).module if into == "another fold" else copy.deepcopy(folded)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.zero_()
    ids = tokens()
    with torch.no_grad():
        expected = folded(ids)
        assert not torch.equal(other(ids), expected)
        load_model(other, str(tmp_path / "folded.safetensors"), strict=True)
        assert torch.equal(other(ids), expected)
    state = other.state_dict()
    assert state["gpt.lm_head.weight"].data_ptr() == state["gpt.transformer.wte.weight"].data_ptr()
    compare(model, other)


def test_a_state_without_its_table_is_not_loaded(tmp_path: Path) -> None:
    model = Gated()
    folded = fold(model).module
    save_model(model, str(tmp_path / "original.safetensors"))
    with pytest.raises(RuntimeError, match="foldfx_tables"):
        load_model(folded, str(tmp_path / "original.safetensors"), strict=True)
