"""The engine as a module: calls, dtypes, precision, state dict, devices, route weights and capacity."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foldfx.runtime.tr_hash import RouteTable, TRHashEngine, TRHashEngineConfig, build_route_table, pair_codes

from .definition import HIDDEN, SHARED, VOCABULARY, WIDTH, assert_near, by_token, engine, inputs

PLANTED = torch.tensor([[0, 1], [2, 3]], dtype=torch.int64).repeat(1, VOCABULARY // 2)
"""A table that no strategy makes."""


def output(layer: TRHashEngine, hidden: Tensor, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(hidden, ids)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_precision_is_the_dtype_of_the_parameters(precision: str, dtype: torch.dtype) -> None:
    layer = engine(None, precision=precision)
    assert {weight.dtype for weight in layer.parameters()} == {dtype}
    assert layer.capability_summary()["precision"] == precision
    hidden, ids = inputs(dtype)
    assert layer(hidden, ids).dtype == dtype


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_missing_precisions_say_what_is_missing(precision: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{precision} needs a quantised grouped matrix product"):
        engine(precision=precision)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_any_integer_ids(dtype: torch.dtype) -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    ids = ids.clamp(0, VOCABULARY - 1)
    assert torch.equal(layer(hidden, ids.to(dtype)), layer(hidden, ids))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64], ids=str)
def test_other_ids_are_refused(dtype: torch.dtype) -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    with pytest.raises(TypeError, match="token_ids must be one of"):
        layer(hidden, ids.to(dtype))


def test_ids_or_hidden_states_without_values_are_refused() -> None:
    """The output was uninitialised memory."""
    hidden, ids = inputs(torch.float32)
    for call in ((hidden, ids.to("meta")), (hidden.to("meta"), ids)):
        with pytest.raises(ValueError, match=r"token_ids are on (meta|cpu), hidden on (cpu|meta); move them to one device"):
            engine()(*call)


def test_ids_outside_are_clamped_or_refused() -> None:
    clamps = engine()
    hidden, ids = inputs(torch.float32)
    assert torch.equal(clamps(hidden, ids), clamps(hidden, ids.clamp(0, VOCABULARY - 1)))
    refuses = engine(out_of_range="error")
    refuses.load_state_dict(clamps.state_dict())
    inside = ids.clamp(0, VOCABULARY - 1)
    assert torch.equal(refuses(hidden, inside), clamps(hidden, inside))
    with pytest.raises(IndexError, match=rf"token id -3 at \[0\] is outside 0\.\.{VOCABULARY - 1}"):
        refuses(hidden, ids)
    with pytest.raises(IndexError, match="token id 200 "):
        refuses(hidden[:1, :1], torch.full((1, 1), 200, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("hidden", "ids", "error", "message"),
    [
        ((5, HIDDEN), (5,), ValueError, r"hidden_states must be \[batch, sequence, hidden\]"),
        ((2, 5, HIDDEN), (2, 4), ValueError, "token_ids must match hidden batch/sequence dimensions"),
        ((2, 5, HIDDEN + 1), (2, 5), ValueError, f"expected hidden size {HIDDEN}, got {HIDDEN + 1}"),
    ],
)
def test_shapes_are_checked(hidden: tuple[int, ...], ids: tuple[int, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        engine()(torch.zeros(hidden), torch.zeros(ids, dtype=torch.int64))


def test_another_dtype_is_refused_and_autocast_takes_it() -> None:
    layer = engine()
    hidden, ids = inputs(torch.bfloat16)
    with pytest.raises(TypeError, match=r"hidden is torch\.bfloat16 and expert_gate|hidden is torch\.bfloat16 and expert_up"):
        layer(hidden, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(hidden, ids).dtype == torch.bfloat16


def test_autocast_computes_in_its_dtype_and_returns_that_of_the_input() -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(hidden, ids)
        found.sum().backward()
    assert found.dtype == torch.float32
    rounded = copy.deepcopy(layer).bfloat16()
    assert torch.equal(found, rounded(hidden.bfloat16(), ids).float())
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in layer.parameters())
    double = copy.deepcopy(layer).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = double(hidden.double(), ids)
    assert torch.equal(inside, double(hidden.double(), ids))


def test_state_dict_names_and_a_round_trip() -> None:
    layer = engine()
    state = layer.state_dict()
    shapes = {name: (tuple(entry.shape), entry.dtype) for name, entry in state.items()}
    assert shapes == {
        "expert_gate": ((4, HIDDEN, WIDTH), torch.float32),
        "expert_up": ((4, HIDDEN, WIDTH), torch.float32),
        "expert_down": ((4, WIDTH, HIDDEN), torch.float32),
        "shared_gate.weight": ((SHARED, HIDDEN), torch.float32),
        "shared_up.weight": ((SHARED, HIDDEN), torch.float32),
        "shared_down.weight": ((HIDDEN, SHARED), torch.float32),
        "route_table": ((2, VOCABULARY), torch.uint8),
        "fused_route_codes": ((VOCABULARY,), torch.uint8),
        "fused_expert_pairs": ((6, 2), torch.int32),
    }
    other = engine()
    assert other.load_state_dict(state).missing_keys == []
    hidden, ids = inputs(torch.float32)
    assert torch.equal(other(hidden, ids), layer(hidden, ids))
    assert "shared_gate.weight" not in engine(shared_width=0).state_dict()
    wide = engine(num_experts=16).state_dict()
    assert (wide["fused_route_codes"].numel(), wide["fused_expert_pairs"].shape) == (0, (0, 2))


def published(layer: TRHashEngine, table: Tensor) -> dict[str, Tensor]:
    """A state dict as published checkpoints have it: the table in int64, codes stored."""
    codes, pairs = pair_codes(RouteTable(table, layer.config.num_experts))
    return layer.state_dict() | {"route_table": table, "fused_route_codes": codes, "fused_expert_pairs": pairs}


@pytest.mark.parametrize("assign", [False, True])
def test_a_published_checkpoint_loads_in_a_model(assign: bool) -> None:
    """Nested, in int64, with a table no strategy makes: that table routes afterwards."""
    model, source = nn.Sequential(nn.Identity(), engine()), engine()
    state = {f"1.{name}": entry for name, entry in published(source, PLANTED).items()}
    kept = dict(state)
    model.load_state_dict(state, assign=assign)
    assert state == kept
    layer = model[1]
    assert isinstance(layer, TRHashEngine)
    assert (layer.route_table.dtype, layer.routes) == (torch.uint8, RouteTable(PLANTED, 4))
    hidden, ids = inputs(torch.float64)
    expected, _ = by_token(layer, hidden, ids, PLANTED)
    assert_near("output", layer.double()(hidden, ids), expected, torch.float64)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("route_table", torch.zeros(2, VOCABULARY, dtype=torch.int64), "distinct experts"),
        ("route_table", torch.full((2, VOCABULARY), 9), "out-of-range expert index: 9"),
        ("route_table", torch.zeros(2, VOCABULARY), "must hold integers"),
        ("route_table", torch.tensor([[0], [1]]), r"K, V, E = \(2, 1, 4\), the layer has \(2, 50, 4\)"),
        ("fused_route_codes", torch.zeros(VOCABULARY, dtype=torch.uint8), "fused_route_codes disagrees with the route table"),
        ("fused_expert_pairs", torch.zeros(6, 2, dtype=torch.int32), "fused_expert_pairs disagrees with the route table"),
        ("fused_route_codes", torch.zeros(3, dtype=torch.uint8), "fused_route_codes disagrees with the route table"),
    ],
)
def test_a_wrong_table_or_code_leaves_the_layer_alone(name: str, value: Tensor, message: str) -> None:
    layer = engine()
    before = {each: entry.clone() for each, entry in layer.state_dict().items() if not each.startswith("shared")}
    state = published(engine(), PLANTED) | {name: value}
    with pytest.raises(RuntimeError, match=message):
        layer.load_state_dict(state)
    assert all(torch.equal(entry, layer.state_dict()[each]) for each, entry in before.items())


def test_codes_without_a_table_are_compared_with_the_present_one() -> None:
    layer = engine()
    codes = {"fused_route_codes": pair_codes(RouteTable(PLANTED, 4))[0]}
    with pytest.raises(RuntimeError, match="disagrees with the route table"):
        layer.load_state_dict(codes, strict=False)
    own = {"fused_route_codes": pair_codes(layer.routes)[0]}
    assert layer.load_state_dict(own, strict=False).unexpected_keys == []
    with pytest.raises(RuntimeError, match=r"Missing key.*route_table"):
        layer.load_state_dict({name: entry for name, entry in layer.state_dict().items() if name != "route_table"})


def test_meta_construction_and_both_ways_out_of_it() -> None:
    source = engine()
    source.load_route_table(PLANTED)
    hidden, ids = inputs(torch.float32)
    expected = source(hidden, ids)
    with torch.device("meta"):
        empty, assigned = TRHashEngine(source.config), TRHashEngine(source.config)
    assert empty.route_table.is_meta
    assert empty.routes == engine().routes
    with pytest.raises(RuntimeError, match="meta device; materialise it"):
        empty(hidden, ids)
    empty.to_empty(device="cpu")
    assert empty.routes == engine().routes  # content, not what memory held
    empty.load_state_dict(source.state_dict())
    assigned.load_state_dict(source.state_dict(), assign=True)
    for layer in (empty, assigned):
        assert torch.equal(layer(hidden, ids), expected)
        assert layer.routes == source.routes


def test_to_meta_and_back_keeps_the_tables() -> None:
    layer = engine()
    layer.load_route_table(PLANTED)
    for device in ("cpu", "meta", "cpu"):
        layer = layer.to(device) if device == "meta" else layer.to_empty(device=device)
        assert layer.routes == RouteTable(PLANTED, 4)
    reduced = engine()
    reduced.set_active_capacity(2)
    expected = reduced.active_route_table
    assert expected is not None
    reduced.to_empty(device="cpu")
    assert reduced.active_route_table is not None
    assert torch.equal(reduced.active_route_table, expected)


def test_casts_leave_the_table_and_the_route_weights_alone() -> None:
    layer = engine(route_weights=(0.7, 0.3))
    table = layer.routes
    for cast in (
        layer.bfloat16,
        layer.half,
        layer.double,
        lambda: layer.type(torch.float32),
        lambda: layer.type(torch.float64),
    ):
        cast()
        assert layer.route_table.dtype == torch.uint8
        assert layer.routes == table
        assert layer.config.route_weights == (0.7, 0.3)


def test_copies_and_pickles_are_independent() -> None:
    layer = engine()
    hidden, ids = inputs(torch.float32)
    expected = layer(hidden, ids)
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(stream, weights_only=False)):
        assert torch.equal(other(hidden, ids), expected)
        other.load_route_table(PLANTED)
        other.set_top_k_primary_weight(1.0)
    assert torch.equal(layer(hidden, ids), expected)


def test_loading_a_table_is_all_or_nothing() -> None:
    layer = engine()
    before = layer.routes
    for table, error in (
        (torch.zeros(2, VOCABULARY, dtype=torch.int64), ValueError),
        (torch.full((2, VOCABULARY), 7), ValueError),
        (PLANTED[:, :-1], ValueError),
        (PLANTED.float(), TypeError),
        (RouteTable(PLANTED, 8), ValueError),
    ):
        with pytest.raises(error):
            layer.load_route_table(table)
        assert layer.routes == before
    layer.load_route_table(RouteTable(PLANTED, 4))
    assert layer.routes == RouteTable(PLANTED, 4)


def test_a_table_given_to_the_constructor() -> None:
    assert TRHashEngine(engine().config, routes=RouteTable(PLANTED, 4)).routes == RouteTable(PLANTED, 4)
    with pytest.raises(ValueError, match="K, V, E"):
        TRHashEngine(engine().config, routes=RouteTable(PLANTED, 8))
    with pytest.raises(TypeError, match=r"routes must be a RouteTable, got a Tensor; RouteTable\(experts, num_experts\)"):
        TRHashEngine(engine().config, routes=PLANTED)  # type: ignore[arg-type]


def test_the_primary_weight() -> None:
    layer = engine(num_experts=8, top_k=4)
    layer.set_top_k_primary_weight(0.7)
    assert layer.config.route_weights == pytest.approx((0.7, 0.1, 0.1, 0.1))
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="route_weights"):
            layer.set_top_k_primary_weight(wrong)
    assert layer.config.route_weights == pytest.approx((0.7, 0.1, 0.1, 0.1))
    single = engine(top_k=1)
    single.set_top_k_primary_weight(1.0)
    with pytest.raises(ValueError, match="sum to 1"):
        single.set_top_k_primary_weight(0.9)


def test_initialisation() -> None:
    layer = TRHashEngine(TRHashEngineConfig(64, 50, shared_width=64, expert_width=64, initializer_range=0.02, precision="fp32"))
    for name, weight in layer.named_parameters():
        assert abs(float(weight.std()) - 0.02) < 0.002, name
        assert abs(float(weight.mean())) < 0.002, name
    with pytest.raises(ValueError, match="hierarchical hash requires"):
        engine(num_experts=2, routing_strategy="token_id_hierarchical_hash")


CAPACITIES: list[tuple[dict[str, Any], int, int]] = [
    ({"num_experts": 8}, 4, WIDTH),
    ({"num_experts": 8}, 2, 3),
    ({"num_experts": 4}, 4, 2),
    ({"num_experts": 4, "top_k": 1}, 1, WIDTH),
    ({"num_experts": 8, "routing_strategy": "token_id_hierarchical_hash"}, 4, WIDTH),
    ({"num_experts": 8, "routing_strategy": "token_id_hierarchical_hash"}, 2, WIDTH),
]


@pytest.mark.parametrize(("values", "experts", "width"), CAPACITIES)
def test_reduced_capacity_is_the_prefix_layer(values: dict[str, Any], experts: int, width: int) -> None:
    """Forward and backward equal a layer that has these weights alone; back at full size nothing has changed."""
    layer = engine(torch.float64, **values)
    hidden, ids = inputs(torch.float64)
    full = output(layer, hidden, ids)
    layer.set_active_capacity(experts, width)
    assert layer.capacity == (experts, width)
    hierarchical_below_four = layer.config.routing_strategy == "token_id_hierarchical_hash" and experts < 4
    strategy = "token_id_balanced_hash" if hierarchical_below_four else layer.config.routing_strategy
    small = engine(torch.float64, **values | {"num_experts": experts, "expert_width": width, "routing_strategy": strategy})
    with torch.no_grad():
        small.expert_gate.copy_(layer.expert_gate[:experts, :, :width])
        small.expert_up.copy_(layer.expert_up[:experts, :, :width])
        small.expert_down.copy_(layer.expert_down[:experts, :width])
        for name in ("shared_gate", "shared_up", "shared_down"):
            getattr(small, name).weight.copy_(getattr(layer, name).weight)
    results = layer(hidden, ids), small(hidden, ids)
    assert_near("reduced", results[0], results[1], torch.float64)
    for each in results:
        each.square().sum().backward()
    assert_near("gate", layer.expert_gate.grad[:experts, :, :width], small.expert_gate.grad, torch.float64)
    assert_near("down", layer.expert_down.grad[:experts, :width], small.expert_down.grad, torch.float64)
    unused = layer.expert_gate.grad.clone()
    unused[:experts, :, :width] = 0
    assert not unused.any()
    layer.set_active_capacity(layer.config.num_experts, layer.config.expert_width)
    assert torch.equal(output(layer, hidden, ids), full)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((16, None), ValueError, r"active num_experts \(16\) cannot exceed the allocated capacity \(8\)"),
        ((None, WIDTH + 1), ValueError, r"active expert_width \(7\) cannot exceed the allocated capacity \(6\)"),
        ((3, None), ValueError, "num_experts must be one of"),
        ((1, None), ValueError, "top_k cannot exceed num_experts"),
        ((4, 0), ValueError, "expert_width must be positive"),
        ((4, 2.0), TypeError, "expert_width must be an int"),
        ((True, None), TypeError, "num_experts must be an int"),
    ],
)
def test_capacity_is_all_or_nothing(arguments: tuple[Any, Any], error: type[Exception], message: str) -> None:
    layer = engine(num_experts=8)
    hidden, ids = inputs(torch.float32)
    layer.set_active_capacity(4, 5)
    before = output(layer, hidden, ids)
    with pytest.raises(error, match=message):
        layer.set_active_capacity(*arguments)
    assert layer.capacity == (4, 5)
    assert torch.equal(output(layer, hidden, ids), before)


def test_capacity_arguments_left_out_stay() -> None:
    layer = engine(num_experts=8)
    layer.set_active_capacity(4, 5)
    layer.set_active_capacity(expert_width=2)
    assert layer.capacity == (4, 2)
    layer.set_active_capacity(num_experts=8)
    assert layer.capacity == (8, 2)
    assert layer.active_route_table is None


def test_a_loaded_table_is_not_ignored_at_reduced_capacity() -> None:
    layer = engine(num_experts=8)
    planted = RouteTable(PLANTED, 8)
    layer.load_route_table(planted)
    with pytest.raises(ValueError, match=r"is not the one that token_id_balanced_hash builds.*pass routes="):
        layer.set_active_capacity(4)
    assert layer.capacity == (8, WIDTH)
    layer.set_active_capacity(expert_width=3)
    with pytest.raises(ValueError, match="K, V, E"):
        layer.set_active_capacity(4, routes=planted)
    layer.set_active_capacity(4, routes=planted.folded(4))
    hidden, ids = inputs(torch.float64)
    small = copy.deepcopy(layer).double()
    with torch.no_grad():
        small.expert_gate[:, :, 3:] = 0
    expected, _ = by_token(small, hidden, ids, PLANTED)
    assert_near("planted", layer.double()(hidden, ids), expected, torch.float64)
    with pytest.raises(ValueError, match="load_route_table"):
        layer.set_active_capacity(8, routes=planted)


def test_no_table_is_loaded_at_reduced_capacity() -> None:
    """Which would leave the reduced table standing beside another full one."""
    layer, source = engine(), engine()
    layer.set_active_capacity(2)
    with pytest.raises(RuntimeError, match="restore all experts"):
        layer.load_route_table(PLANTED)
    with pytest.raises(RuntimeError, match="restore all experts"):
        layer.load_state_dict(published(source, PLANTED))
    assert layer.load_state_dict(source.state_dict()).missing_keys == []
    assert layer.routes == build_route_table("token_id_balanced_hash", vocab_size=VOCABULARY, num_experts=4, top_k=2)
