"""The fifteen faults found in the public engine (facts, §9.2), each with a test that it is not here."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from foldfx.runtime.tr_hash import TR_HASH_MLP, RouteTable, TRHashEngine, pair_codes
from foldfx.runtime.tr_hash.call import Call
from foldfx.runtime.tr_hash.convert import from_token_routed
from foldfx.runtime.tr_hash.grouping import by_expert, by_pair
from foldfx.runtime.tr_hash.model_config import WITHOUT_EFFECT, layer_config
from foldfx.runtime.tr_hash.traceable import traceable_forward

from .definition import HIDDEN, VOCABULARY, assert_near, by_token, engine, inputs

PLANTED = torch.tensor([[0, 1], [2, 3]], dtype=torch.int64).repeat(1, VOCABULARY // 2)


def test_fault_01_the_primary_weight_takes_effect_in_every_lowering() -> None:
    layer = engine(torch.float64, route_weights=(0.5, 0.5))
    layer.set_top_k_primary_weight(0.9)
    for shape in ((2, 5), (1, 1), (8, 200)):
        hidden, ids = inputs(torch.float64, *shape)
        expected, _ = by_token(layer, hidden, ids)
        assert layer.config.route_weights == pytest.approx((0.9, 0.1))
        assert_near(f"{shape}", layer(hidden, ids), expected, torch.float64)


def test_fault_02_assigned_state_routes_by_its_own_table() -> None:
    layer, source = engine(torch.float64), engine(torch.float64)
    source.load_route_table(PLANTED)
    layer.load_state_dict(source.state_dict(), assign=True)
    hidden, ids = inputs(torch.float64)
    expected, _ = by_token(source, hidden, ids, PLANTED)
    assert_near("assigned", layer(hidden, ids), expected, torch.float64)


@pytest.mark.parametrize("assign", [True, False])
def test_fault_03_meta_construction_leaves_no_garbage(assign: bool) -> None:
    source = engine(route_weights=(0.7, 0.3))
    with torch.device("meta"):
        layer = TRHashEngine(source.config)
    if not assign:
        layer.to_empty(device="cpu")
    layer.load_state_dict(source.state_dict(), assign=assign)
    call = inputs(torch.float32)
    assert layer.config.route_weights == (0.7, 0.3)
    assert torch.equal(layer(*call), source(*call))


def test_fault_04_an_unstated_primary_weight_is_asked_for() -> None:
    tensors = {
        "gate_proj_w": torch.randn(4, 3, 2),
        "up_proj_w": torch.randn(4, 3, 2),
        "down_proj_w": torch.randn(4, 2, 3),
        "topk_token_to_expert": PLANTED,
    }
    with pytest.raises(ValueError, match="top_k_primary_weight is not stated"):
        from_token_routed(tensors, mlp_type="token_routed", primary_weight=None, layer_index=0)


def test_fault_05_tables_and_capacity_change_completely_or_not_at_all() -> None:
    layer = engine(num_experts=8)
    call = inputs(torch.float32)
    before, table = layer(*call), layer.routes
    with pytest.raises(ValueError, match="distinct"):
        layer.load_route_table(torch.zeros(2, VOCABULARY, dtype=torch.int64))
    with pytest.raises(ValueError, match="expert_width"):
        layer.set_active_capacity(4, 10_000)
    assert layer.routes == table
    assert not layer.is_reduced
    assert torch.equal(layer(*call), before)


def test_fault_06_stored_codes_that_disagree_with_the_table_are_refused() -> None:
    layer = engine()
    codes = pair_codes(RouteTable(PLANTED, 4))[0]
    with pytest.raises(RuntimeError, match="fused_route_codes disagrees"):
        layer.load_state_dict({"fused_route_codes": codes}, strict=False)
    with pytest.raises(RuntimeError, match="fused_route_codes disagrees"):
        layer.load_state_dict(layer.state_dict() | {"fused_route_codes": codes})


def test_fault_07_reduced_capacity_falls_back_with_a_reason_and_honours_the_table() -> None:
    layer = engine(num_experts=8)
    layer.set_active_capacity(4)
    summary = layer.capability_summary("cuda")
    assert summary["selected_backend"] == "pytorch"
    assert "capacity is reduced" in summary["declined"]["fused_cuda"]
    loaded = engine(num_experts=8)
    loaded.load_route_table(PLANTED)
    with pytest.raises(ValueError, match="is not the one that"):
        loaded.set_active_capacity(4)
    hierarchical = engine(routing_strategy="token_id_hierarchical_hash")
    hierarchical.set_active_capacity(2)
    assert hierarchical(*inputs(torch.float32)).isfinite().all()


def test_fault_08_graphs_do_not_outlive_what_they_read() -> None:
    """Each kind of change is in `test_graphs`; here, that casts alone clear the pool, whose keys hold dtype and device."""
    layer = engine(graph_buckets=())
    pool = layer._graphs
    pool._graphs[object()] = object()  # type: ignore[index,assignment]
    layer.double()
    assert len(pool) == 0


def traced(layer: TRHashEngine, hidden: Tensor, ids: Tensor) -> torch.fx.GraphModule:
    """The form without host synchronisation, as a graph of ATen operations."""

    def compute(hidden: Tensor, ids: Tensor) -> Tensor:
        weights = [layer.expert_gate, layer.expert_up, layer.expert_down, None, None, None]
        return traceable_forward(Call(hidden, ids, layer.route_table, *weights, [0.5, 0.5], 1.0, 1.0))

    with torch.no_grad():
        return make_fx(compute, tracing_mode="symbolic", _allow_non_fake_inputs=True)(hidden, ids)


def test_fault_09_one_program_for_every_number_of_tokens_and_a_stable_order() -> None:
    """No value reaches the host, no size is fixed, and sorts are stable."""
    layer = engine()
    module = traced(layer, *inputs(torch.float32))
    names = {str(node.target) for node in module.graph.nodes}
    assert not [name for name in names if any(word in name for word in ("_local_scalar_dense", "nonzero", "bincount", "sort"))]
    for shape in ((1, 1), (3, 7), (2, 50)):
        hidden, ids = inputs(torch.float32, *shape)
        expected = TR_HASH_MLP(
            hidden, ids, layer.route_table, layer.expert_gate, layer.expert_up, layer.expert_down,
            None, None, None, [0.5, 0.5], 1.0, 1.0, "clamp", "masked_dense",
        )  # fmt: skip
        assert float((module(hidden, ids) - expected).abs().max()) <= 1e-5
    routes = layer.route_table[:, torch.randint(VOCABULARY, (400,))].long()
    for grouping in (by_expert, by_pair):
        sorted_by_group = grouping(routes, [0.7, 0.3], 4, torch.float32)
        for _, (tokens, factors) in sorted_by_group.parts(sorted_by_group.tokens, sorted_by_group.factors):
            in_order = [tokens] if grouping is by_pair else _by_position(tokens, factors)
            assert all(torch.equal(some, some.sort().values) for some in in_order)
            assert len(tokens.unique()) == len(tokens)


def _by_position(tokens: Tensor, factors: Tensor) -> list[Tensor]:
    """Tokens whose primary route this is, then those whose secondary."""
    return [tokens[factors[:, 0] == factor] for factor in factors.unique()]


def test_fault_10_offsets_hold_more_than_two_to_the_31() -> None:
    """1.2 million tokens at H = 896, of which hidden states alone have more than 2³¹ bytes; every index is int64."""
    layer = engine()
    integers = {
        node.meta["val"].dtype
        for node in traced(layer, *inputs(torch.float32)).graph.nodes
        if isinstance(node.meta.get("val"), Tensor) and not node.meta["val"].is_floating_point()
    }
    assert integers <= {torch.int64, torch.uint8, torch.bool}
    with FakeTensorMode():
        hidden, ids = torch.empty(1_200_000, 896), torch.empty(1_200_000, dtype=torch.int64)
        weights = [torch.empty(4, 896, 64), torch.empty(4, 896, 64), torch.empty(4, 64, 896)]
        table = torch.empty(2, 32_000, dtype=torch.uint8)
        output = TR_HASH_MLP(hidden, ids, table, *weights, None, None, None, [0.5, 0.5], 1.0, 1.0, "clamp", "auto")
    assert 2 * output.numel() > 2**31


def test_fault_11_policies_that_turn_kernels_off_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"hidden_size": 8, "vocab_size": 9, "intermediate_size": 8, "num_experts": 4, "top_k": 2}
    for off in ({"use_cggr": False}, {"use_cggr": "false"}, {"use_custom_kernels": False}):
        assert layer_config(settings | off, 0).backend == "pytorch"
    assert layer_config(settings | {"use_cggr": True}, 0).backend == "cggr"
    assert layer_config(settings, 0).backend == "auto"
    monkeypatch.setattr(torch.version, "hip", "6.2")
    declined = engine().capability_summary("cuda")["declined"]
    assert "Triton is off on ROCm" in declined["cggr"]
    assert "Triton is off on ROCm" in declined["fused_cuda"]
    monkeypatch.setenv("FOLDFX_ALLOW_ROCM_TRITON", "1")
    assert "ROCm" not in engine().capability_summary("cuda")["declined"]["cggr"]


def test_fault_12_precision_and_route_weights_mean_what_they_say() -> None:
    layer = engine(None, precision="bf16", route_weights=(0.7, 0.3))
    assert {weight.dtype for weight in layer.parameters()} == {torch.bfloat16}
    assert layer.config.route_weights == (0.7, 0.3)
    wide = copy.deepcopy(layer).double()
    assert wide.capability_summary()["precision"] == "fp64"
    hidden, ids = inputs(torch.float64)
    expected, _ = by_token(wide, hidden, ids)
    assert_near("0.7, not 0.69921875", wide(hidden, ids), expected, torch.float64)


def test_fault_13_bytes_are_ids_and_ids_of_another_vocabulary_can_be_refused() -> None:
    hidden, ids = inputs(torch.float32)
    layer = engine(out_of_range="error")
    inside = ids.clamp(0, VOCABULARY - 1)
    assert torch.equal(layer(hidden, inside.to(torch.uint8)), layer(hidden, inside))
    with pytest.raises(IndexError, match="another vocabulary"):
        layer(hidden, ids)


def test_fault_14_training_keeps_no_more_than_a_dense_layer() -> None:
    """Bytes saved for the backward, at most 1.05 times a dense SwiGLU of the active width; experts unused get zeros."""

    class Dense(nn.Module):
        def __init__(self, hidden: int, width: int) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(hidden, width, bias=False), nn.Linear(hidden, width, bias=False)
            self.down = nn.Linear(width, hidden, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    layer = engine(hidden_size=28, shared_width=96, expert_width=2)
    dense = Dense(28, layer.config.active_mlp_width)
    hidden, ids = torch.randn(8, 512, 28, requires_grad=True), torch.randint(VOCABULARY, (8, 512))

    def saved(module: nn.Module, *call: Tensor) -> int:
        held: dict[int, int] = {}
        own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = module(*call)
        assert output.requires_grad
        return sum(held.values())

    assert saved(layer, hidden, ids) <= 1.05 * saved(dense, hidden)
    layer.load_route_table(torch.tensor([[0], [1]]).expand(2, VOCABULARY))
    layer(hidden, ids).sum().backward()
    for weight in (layer.expert_gate, layer.expert_up, layer.expert_down):
        assert weight.grad is not None
        assert weight.grad[:2].any()
        assert not weight.grad[2:].any()


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_fault_15_settings_without_effect_are_refused(name: str) -> None:
    settings = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "intermediate_size": 8}
    asked: list[object] = [2, True, 1.0, "true"]
    off: list[object] = [None, False, 0, "false"]
    (off if name == "tensor_parallel_size" else asked).append(1)
    for value in asked:
        with pytest.raises(ValueError, match=f"{name}={value!r} would have no effect"):
            layer_config(settings | {name: value}, 0)
    for value in off:
        assert layer_config(settings | {name: value}, 0).top_k == 1
