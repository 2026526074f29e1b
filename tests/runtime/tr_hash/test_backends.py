"""Who computes, and why nobody faster does."""

from __future__ import annotations

import pytest
import torch

from foldfx.runtime.tr_hash import backends
from foldfx.runtime.tr_hash.choice import choose, require_possible, tokens_as_columns

from .definition import engine, inputs

KEYS = {
    "experts", "top_k", "shared_width", "expert_width", "stored_width", "active_width", "active_width_fraction",
    "active_num_experts", "active_expert_width", "is_reduced_capacity", "attention", "routing", "phase", "precision",
    "world_size", "parallelism", "requested_backend", "selected_backend", "backend_reasons", "fused_cuda_eligible",
    "cuda_graph_buckets",
}  # fmt: skip


def test_the_summary_has_the_contracts_keys_and_what_was_declined() -> None:
    assert len(KEYS) == 21
    summary = engine(shared_width=3072, expert_width=64).capability_summary()
    assert summary.keys() == KEYS | {"declined"}
    assert (summary["stored_width"], summary["active_width"]) == (3328, 3200)
    assert summary["active_width_fraction"] == 3200 / 3328
    assert (summary["requested_backend"], summary["selected_backend"]) == ("auto", "pytorch")
    assert summary["declined"] == {
        "fused_cuda": "it requires a CUDA device, got cpu",
        "cggr": "it requires a CUDA device, got cpu",
        "cuda_graph": "it requires a CUDA device, got cpu",
    }
    assert summary["backend_reasons"] == [f"{backend}: {why}" for backend, why in summary["declined"].items()]


def test_the_summary_takes_devices_and_their_names() -> None:
    layer = engine()
    for name, kind in (("cuda:0", "cuda"), ("cpu:0", "cpu")):
        expected = layer.capability_summary(kind)
        assert layer.capability_summary(name) == layer.capability_summary(torch.device(name)) == expected
    assert layer.capability_summary("cuda")["declined"] != layer.capability_summary()["declined"]


def test_the_summary_of_a_reduced_layer() -> None:
    layer = engine(num_experts=8)
    layer.set_active_capacity(4, 3)
    summary = layer.capability_summary("cuda")
    assert summary["is_reduced_capacity"]
    assert (summary["experts"], summary["active_num_experts"], summary["active_expert_width"]) == (8, 4, 3)
    assert summary["active_width"] == layer.config.shared_width + 2 * 3
    assert summary["selected_backend"] == "pytorch"
    assert "capacity is reduced" in summary["declined"]["fused_cuda"]


@pytest.mark.parametrize(
    ("values", "backend", "reason"),
    [
        ({"num_experts": 16}, "fused_cuda", "requires top_k=2 and two to eight experts, got 2 of 16"),
        ({"top_k": 1}, "fused_cuda", "requires top_k=2 and two to eight experts, got 1 of 4"),
        ({}, "fused_cuda", "foldfx has no fused Triton kernel"),
        ({}, "cggr", "foldfx has no grouped Triton kernel"),
        ({}, "cuda_graph", "set backend='cuda_graph' and graph_buckets"),
    ],
)
def test_reasons_on_a_gpu(values: dict[str, int], backend: str, reason: str) -> None:
    assert reason in engine(**values).capability_summary("cuda")["declined"][backend]


@pytest.mark.parametrize("backend", ["cggr", "fused_cuda"])
def test_a_backend_asked_for_by_name_is_not_replaced(backend: str) -> None:
    layer = engine(backend=backend)
    with pytest.raises(RuntimeError, match=f"{backend} backend was requested, but it requires a CUDA device, got cpu"):
        layer(*inputs(torch.float32))
    assert layer.last_backend is None
    with pytest.raises(RuntimeError, match="foldfx has no"):
        layer.capability_summary("cuda")


def test_last_backend_says_what_ran() -> None:
    layer = engine()
    assert layer.last_backend is None
    layer(*inputs(torch.float32))
    assert layer.last_backend == backends.BackendDecision(
        backends.Backend.AUTO,
        backends.Backend.PYTORCH,
        tuple(layer.capability_summary()["backend_reasons"]),
        lowering="masked_dense",
    )
    layer(*inputs(torch.float32, 8, 200))
    assert layer.last_backend is not None
    assert layer.last_backend.lowering == "by_pair"
    plain = engine(backend="pytorch")
    plain(*inputs(torch.float32))
    assert plain.last_backend is not None
    assert plain.last_backend.reasons == ()


def test_last_backend_is_that_of_a_compiled_call_too() -> None:
    """Without a lowering, which is chosen when the graph runs; the next eager call has its own again."""
    torch._dynamo.reset()
    layer = engine()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    call = inputs(torch.float32)
    for each, lowering in ((compiled, None), (layer, "masked_dense"), (compiled, None), (layer, "masked_dense")):
        each(*call)
        assert layer.last_backend is not None
        assert layer.last_backend.selected is backends.Backend.PYTORCH
        assert layer.last_backend.lowering == lowering


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_is_no_call(strict: bool) -> None:
    torch._dynamo.reset()
    layer = engine()
    torch.export.export(layer, inputs(torch.float32), strict=strict)
    assert layer.last_backend is None


@pytest.mark.parametrize(
    ("tokens", "experts", "width", "weights", "device", "lowering"),
    [
        (32, 4, 64, [0.5, 0.5], "cpu", "masked_dense"),
        (256, 4, 64, [0.5, 0.5], "cpu", "by_expert"),
        (1024, 4, 64, [0.5, 0.5], "cpu", "by_pair"),
        (1024, 4, 64, [1.0, 0.0], "cpu", "by_expert"),
        (1024, 4, 512, [0.5, 0.5], "cpu", "by_expert"),
        (4096, 4, 512, [0.5, 0.5], "cpu", "by_pair"),
        (4096, 16, 64, [0.5, 0.5], "cpu", "by_expert"),
        (1, 8, 64, [0.5, 0.5], "cpu", "by_expert"),
        (4096, 4, 64, [0.25] * 4, "cpu", "masked_dense"),
        (4096, 4, 64, [0.5, 0.5], "cuda", "masked_dense"),
        (None, 4, 64, [0.5, 0.5], "cpu", "by_expert"),
    ],
)
def test_the_choice(tokens: int | None, experts: int, width: int, weights: list[float], device: str, lowering: str) -> None:
    choice = choose(tokens=tokens, num_experts=experts, expert_width=width, weights=weights, device_type=device)
    assert choice.lowering == lowering
    assert choice.reason
    require_possible(choice.lowering, weights)


@pytest.mark.parametrize("tokens", [15, 16, 256, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_the_layout_of_the_shared_branch(tokens: int, dtype: torch.dtype) -> None:
    expected = tokens in (16, 256) and dtype in (torch.float32, torch.bfloat16)
    assert tokens_as_columns(tokens, dtype, "cpu") is expected
    assert not tokens_as_columns(tokens, dtype, "cuda")
