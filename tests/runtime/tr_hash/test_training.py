"""The training contract: which stage follows which, what a refinement plan must say, and gradients of two processes."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from foldfx.runtime.tr_hash.convert import to_serving
from foldfx.runtime.tr_hash.training import (
    PLAN_FIELDS,
    STAGES,
    plan_fingerprint,
    validate_refined_state,
    validate_refinement_plan,
    validate_training_stage_transition,
)

from .definition import HIDDEN, VOCABULARY, engine, inputs

ALLOWED = {
    ("text", "pretraining", "refinement"),
    ("vision", "pretraining", "refinement"),
    ("text", "refinement", "supervised-finetuning"),
    ("text", "supervised-finetuning", "supervised-finetuning"),
    ("vision", "pretraining", "supervised-finetuning"),
    ("vision", "refinement", "supervised-finetuning"),
}


@pytest.mark.parametrize("family", ["text", "vision"])
@pytest.mark.parametrize("source", STAGES)
@pytest.mark.parametrize("target", STAGES)
def test_every_transition(family: str, source: str, target: str) -> None:
    def validate() -> None:
        validate_training_stage_transition(family, source, target, same_corpus=True, fresh_optimizer=True)

    if (family, source, target) in ALLOWED:
        validate()
    else:
        with pytest.raises(ValueError, match=r"root|must follow|forbidden"):
            validate()


@pytest.mark.parametrize(("same_corpus", "fresh_optimizer"), [(None, True), (True, None), (False, True), (1, True), (True, 1)])
def test_refinement_needs_true_not_merely_truth(same_corpus: Any, fresh_optimizer: Any) -> None:
    with pytest.raises(ValueError, match="refinement needs"):
        validate_training_stage_transition(
            "any", "pretraining", "refinement", same_corpus=same_corpus, fresh_optimizer=fresh_optimizer
        )


@pytest.mark.parametrize(("source", "target"), [("sft", "refinement"), ("pretraining", "rlhf")])
def test_unknown_stages(source: str, target: str) -> None:
    with pytest.raises(ValueError, match="stage must be one of"):
        validate_training_stage_transition("any", source, target)


def plans() -> tuple[dict[str, Any], dict[str, Any]]:
    """A refinement and the pretraining it refines."""
    core = {"name": "unique_core", "passes": 1, "sources": {"b": [{"file": "b0", "rows": 2}], "a": [{"file": "a0", "rows": 6}]}}
    common = {
        "format": 1,
        "dataset": "d",
        "revision": "main",
        "seq_len": 8,
        "selection_mode": "all",
        "row_alignment": 2,
        "unique_tokens": 64,
        "source_unique_tokens": {"a": 48, "b": 16},
    }
    refinement = {**common, "phases": [core], "trained_tokens": 64, "source_passes": {"a": 1, "b": 1}}
    return refinement, {**common, "phases": [copy.deepcopy(core), {"name": "repeat", "passes": 2}], "trained_tokens": 128}


def test_the_fingerprint_is_that_of_compact_sorted_json() -> None:
    refinement, pretrain = plans()
    text = (
        '{"dataset":"d","format":1,"revision":"main","row_alignment":2,"selection_mode":"all","seq_len":8,'
        '"source_unique_tokens":{"a":48,"b":16},"sources":{"a":[{"file":"a0","rows":6}],"b":[{"file":"b0","rows":2}]},'
        '"unique_tokens":64}'
    )
    assert json.loads(text)["sources"].keys() == refinement["phases"][0]["sources"].keys()
    assert validate_refinement_plan(refinement, pretrain) == hashlib.sha256(text.encode()).hexdigest()
    refinement["phases"][0]["sources"]["a"][0]["note"] = "not part of it"
    assert plan_fingerprint(refinement) == plan_fingerprint(pretrain)


BROKEN: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "no core": (lambda r, p: r["phases"][0].update(name="core"), "exactly one phase unique_core"),
    "two cores": (lambda r, p: p["phases"].append(p["phases"][0]), "exactly one phase unique_core"),
    "another phase": (lambda r, p: r["phases"].append({"name": "x"}), "phase unique_core alone"),
    "two passes": (lambda r, p: p["phases"][0].update(passes=2), "must have passes 1"),
    "true passes": (lambda r, p: r["phases"][0].update(passes=True), "must have passes 1, got True"),
    "no sources": (lambda r, p: r["phases"][0].update(sources={}), "has no sources"),
    "more tokens": (lambda r, p: r.update(trained_tokens=128), "trains 128 tokens, the unique core has 64"),
    "no source passes": (lambda r, p: r.pop("source_passes"), "needs source_passes"),
    "other sources": (lambda r, p: r.update(source_passes={"a": 1}), "source_passes names"),
    "a source twice": (lambda r, p: r.update(source_passes={"a": 2, "b": 1}), "source_passes must be 1 each"),
    "other corpus": (lambda r, p: p.update(dataset="e"), "the corpora differ"),
    "other rows": (lambda r, p: p["phases"][0]["sources"]["a"][0].update(rows=7), "the corpora differ"),
    "tokens that are true": (
        lambda r, p: r.update(trained_tokens=True, unique_tokens=True),
        "unique_tokens must be a positive",
    ),
    "trained tokens unsaid": (lambda r, p: r.pop("trained_tokens"), "trains None tokens"),
    "trained tokens as a float": (lambda r, p: r.update(trained_tokens=64.0), r"trains 64\.0 tokens"),
    "no tokens": (lambda r, p: [plan.update(unique_tokens=0, trained_tokens=0) for plan in (r, p)], "unique_tokens must be"),
    "no length": (lambda r, p: p.update(seq_len="8"), "seq_len must be a positive int, got '8'"),
    "no rows": (
        lambda r, p: r["phases"][0]["sources"]["a"][0].pop("rows"),
        "source a of the refinement must be a list of files",
    ),
    "null file": (lambda r, p: p["phases"][0]["sources"]["b"][0].update(file=None), "source b of the plan must be a list"),
    "no files": (lambda r, p: r["phases"][0]["sources"].update(a=[]), "source a of the refinement must be a list of files"),
    "a list of sources": (lambda r, p: r["phases"][0].update(sources=["a", "b"]), "has no sources, a mapping"),
    "a mapping of phases": (
        lambda r, p: r.update(phases={"unique_core": r["phases"][0]}),
        "must have phases, a list of mappings",
    ),
    "phases by name": (lambda r, p: p.update(phases=["unique_core"]), "must have phases, a list of mappings"),
    "a field in neither": (lambda r, p: (r.pop("revision"), p.pop("revision")), "the plan has no revision"),
}


@pytest.mark.parametrize("field", PLAN_FIELDS)
def test_a_field_that_is_null_in_both_plans_is_missing(field: str) -> None:
    """Not equal."""
    refinement, pretrain = (plan | {field: None} for plan in plans())
    with pytest.raises(ValueError, match=f"the plan has no {field}"):
        validate_refinement_plan(refinement, pretrain)


@pytest.mark.parametrize("name", BROKEN)
def test_refused_plans(name: str) -> None:
    breaking, message = BROKEN[name]
    refinement, pretrain = plans()
    breaking(refinement, pretrain)
    with pytest.raises(ValueError, match=message):
        validate_refinement_plan(refinement, pretrain)


def test_the_order_of_files_counts() -> None:
    refinement, pretrain = plans()
    for plan in (refinement, pretrain):
        plan["phases"][0]["sources"]["a"] = [{"file": "a0", "rows": 3}, {"file": "a1", "rows": 3}]
    validate_refinement_plan(refinement, pretrain)
    pretrain["phases"][0]["sources"]["a"].reverse()
    with pytest.raises(ValueError, match="the corpora differ"):
        validate_refinement_plan(refinement, pretrain)


def test_full_parameter_refinement_keeps_ids_tables_and_layout() -> None:
    layer = engine()
    before = {name: entry.clone() for name, entry in layer.state_dict().items()}
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(*inputs(torch.float32)).square().mean().backward()
        optimizer.step()
    after = layer.state_dict()
    validate_refined_state(before, after)
    assert all(not torch.equal(before[name], after[name]) for name, _ in layer.named_parameters())
    other = engine(routing_strategy="modulo_cyclic")
    for refined, message in (
        (after | {"route_table": other.route_table}, "changed route_table; token ids would reach other experts"),
        (after | {"fused_route_codes": other.state_dict()["fused_route_codes"]}, "changed fused_route_codes; token ids"),
        (after | {"fused_expert_pairs": after["fused_expert_pairs"].flip(0)}, "changed fused_expert_pairs; token ids"),
        (after | {"expert_up": after["expert_up"].double()}, "changed expert_up from"),
        (after | {"more": torch.zeros(1)}, r"changed the layout: \['more'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            validate_refined_state(before, refined)


@pytest.mark.parametrize("name", ["topk_token_to_expert", "token_to_expert"])
def test_refinement_keeps_tables_under_serving_names(name: str) -> None:
    before, other = (to_serving(engine(route_weights=(0.5, 0.5), layer_index=index))[0] for index in range(2))
    before, other = ({f"layers.0.mlp.{each}": entry for each, entry in state.items()} for state in (before, other))
    name = f"layers.0.mlp.{name}"
    validate_refined_state(before, other | {each: entry.int() for each, entry in before.items() if "token" in each})
    for changed in (other[name], before[name] + 0.5):
        with pytest.raises(ValueError, match=f"changed {name}; token ids"):
            validate_refined_state(before, before | {name: changed})


def _replica(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer = engine(torch.float64, world_size=2)
    hidden, ids = torch.load(f"{folder}/batch.pt")
    replica = DistributedDataParallel(layer)
    part = slice(2 * rank, 2 * rank + 2)
    replica(hidden[part], ids[part]).square().mean().backward()
    summary = layer.capability_summary()
    torch.save(
        {
            "gradients": {name: weight.grad for name, weight in layer.named_parameters()},
            "parallelism": (summary["parallelism"], summary["world_size"]),
            "routes": layer.routes.sha256,
        },
        f"{folder}/{rank}.pt",
    )
    with pytest.raises(ValueError, match="the process group has 2 processes"):
        engine(world_size=3)
    distributed.destroy_process_group()


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    """DDP over gloo, half the batch each: max-abs and relative L2 to one process on the joined batch, in float64."""
    torch.manual_seed(0)
    layer = engine(torch.float64)
    hidden, ids = torch.randn(4, 6, HIDDEN, dtype=torch.float64), torch.randint(VOCABULARY, (4, 6))
    torch.save((hidden, ids), tmp_path / "batch.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_replica, (port, str(tmp_path)), nprocs=2)
    layer(hidden, ids).square().mean().backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["parallelism"] == ("replicated_ddp", 2)
        assert found["routes"] == layer.routes.sha256
        for name, weight in layer.named_parameters():
            difference = found["gradients"][name] - weight.grad
            assert float(difference.abs().max()) <= 1e-14
            assert float(difference.norm() / weight.grad.norm()) <= 1e-13
