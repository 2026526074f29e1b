"""A tiny DeepSeek-V4 with random weights, whole: two layers routed by hash tables, one by learned scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import foldfx
from foldfx.analysis import Facts, analyze_program
from foldfx.analysis.provenance import module_path

transformers = pytest.importorskip("transformers")
VOCABULARY, EXPERTS, CHOSEN = 64, 4, 2
HASHED, LEARNED = ("model.layers.0.mlp.gate", "model.layers.1.mlp.gate"), "model.layers.2.mlp.gate"
SHAPE = (2, 8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    if not hasattr(transformers, "DeepseekV4ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no DeepSeek-V4")
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=16,
        partial_rotary_factor=0.5,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        layer_types=["sliding_attention", "heavily_compressed_attention", "sliding_attention"],
        compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        mlp_layer_types=["hash_moe", "hash_moe", "moe"],
        sliding_window=8,
        hc_mult=2,
        hc_sinkhorn_iters=3,
        max_position_embeddings=64,
        use_cache=False,
    )
    made: nn.Module = transformers.DeepseekV4ForCausalLM(config).eval()
    for path in HASHED:
        table = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(VOCABULARY)])
        made.get_submodule(path).get_buffer("tid2eid").copy_(table)
    return made


@pytest.fixture(scope="module")
def result(model: nn.Module) -> foldfx.Result:
    """Sizes are fixed and few calls searched to save time: the capture with symbolic ones works, and takes a minute."""
    call = foldfx.Example((torch.randint(VOCABULARY, SHAPE),))
    return foldfx.compile(model, [call], dynamic=False, probe_contexts=64)


@pytest.fixture(scope="module")
def facts(result: foldfx.Result) -> tuple[foldfx.Program, Facts]:
    program = result._run.captured
    return program, analyze_program(program)


def values(found: tuple[foldfx.Program, Facts], path: str, target: Any) -> list[torch.fx.Node]:
    nodes = found[0].graph.find_nodes(op="call_function", target=target)
    return [node for node in nodes if module_path(node) == path]


@pytest.mark.parametrize("path", HASHED)
def test_a_hash_layers_expert_ids_are_token_only_and_their_weights_are_not(
    facts: tuple[foldfx.Program, Facts], path: str
) -> None:
    (ids,) = values(facts, path, torch.ops.aten.index.Tensor)
    assert ids.meta["val"].dtype == torch.int64
    assert facts[1][ids].token_only
    (weights,) = values(facts, path, torch.ops.aten.gather.default)
    assert ids in weights.all_input_nodes
    assert not facts[1][weights].token_only
    assert "position" in facts[1].explain(weights.name)


def test_a_learned_layers_experts_are_decided_by_context(facts: tuple[foldfx.Program, Facts]) -> None:
    (choice,) = values(facts, LEARNED, torch.ops.aten.topk.default)
    assert not facts[1][choice].token_only
    assert values(facts, LEARNED, torch.ops.aten.index.Tensor) == []


def test_the_report_names_every_layers_decision(result: foldfx.Result) -> None:
    decisions = result.report.data["decisions"]
    assert [(each["kind"], each["token_only"]) for each in decisions] == [("lookup", True)] * 2 + [("top-k", False)]
    assert [each["score"] for each in decisions[:2]] == [f"{path}.tid2eid" for path in HASHED]
    for each, path in zip(decisions, (*HASHED, LEARNED), strict=True):
        assert f"module {path}, " in each["at"]
        assert each["feeds"] == ["output 0"]
    assert str(result.report).count("over token ids alone, feeds output 0") == len(HASHED)


def test_the_tables_of_expert_ids_are_packed_and_nothing_is_decided_otherwise(model: nn.Module, result: foldfx.Result) -> None:
    assert result.accepted
    assert not any("tid2eid" in name for name in result.module.state_dict())
    assert {f"{path}.weight" for path in (*HASHED, LEARNED)} <= result.module.state_dict().keys()
    tables = [table for rewrite in result.report.data["rewrites"] for table in rewrite["tables"]]
    assert sorted(value["name"] for table in tables for value in table["values"]) == ["index_4", "index_8"]
    ids = torch.randint(VOCABULARY, SHAPE)
    with torch.no_grad():
        assert torch.equal(result.module(ids).logits, model(ids).logits)


def test_the_router_logits_of_a_hash_layer_do_not_fold(result: foldfx.Result) -> None:
    """They read the hidden state; where the reason is sought it is there."""
    assert any("model.layers.0.mlp.gate" in text and "gather" in text for text in result.report.data["blockers"])
