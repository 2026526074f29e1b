"""Conversion carries tables over, asks for what tensors do not tell, and keeps the function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foldfx.runtime.tr_hash import RouteTable, TRHashEngine
from foldfx.runtime.tr_hash.convert import DROPPED, ConvertedLayer, expanded, from_token_routed, to_serving
from foldfx.runtime.tr_hash.model_config import layer_config

from .definition import HIDDEN, SHARED, VOCABULARY, WIDTH, assert_near, engine, inputs

PLANTED = torch.tensor([[0, 1], [2, 3]]).repeat(1, VOCABULARY // 2)
"""A table that no strategy makes."""


def checkpoint(dtype: torch.dtype = torch.float64, experts: int = 4) -> dict[str, Tensor]:
    """A layer as TokenRoutedMLP saves it."""
    tensors = {
        "gate_proj_w": torch.randn(experts, HIDDEN, WIDTH),
        "up_proj_w": torch.randn(experts, HIDDEN, WIDTH),
        "down_proj_w": torch.randn(experts, WIDTH, HIDDEN),
        "shared_gate.weight": torch.randn(SHARED, HIDDEN),
        "shared_up.weight": torch.randn(SHARED, HIDDEN),
        "shared_down.weight": torch.randn(HIDDEN, SHARED),
    }
    return {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"topk_token_to_expert": PLANTED}


def token_routed(tensors: dict[str, Tensor], hidden: Tensor, ids: Tensor, primary: float) -> Tensor:
    """What the serving runtime computes with these tensors."""
    flat, clamped = hidden.reshape(-1, HIDDEN), ids.flatten().clamp(0, VOCABULARY - 1)
    silu = torch.nn.functional.silu
    shared = silu(flat @ tensors["shared_gate.weight"].T) * (flat @ tensors["shared_up.weight"].T)
    y = shared @ tensors["shared_down.weight"].T
    for position, weight in enumerate((primary, 1 - primary)):
        experts = tensors["topk_token_to_expert"][position, clamped]
        gate, up, down = (tensors[name][experts] for name in ("gate_proj_w", "up_proj_w", "down_proj_w"))
        inner = silu(torch.einsum("nh,nhw->nw", flat, gate)) * torch.einsum("nh,nhw->nw", flat, up)
        y = y + weight * torch.einsum("nw,nwh->nh", inner, down)
    return y.reshape(hidden.shape)


@pytest.mark.parametrize("mlp_type", ["token_routed", "sort_split", "sort_split_moe"])
@pytest.mark.parametrize("primary", [0.95, 0.5])
def test_a_token_routed_layer_computes_the_same(mlp_type: str, primary: float) -> None:
    """By a table that no strategy makes, so it was carried over."""
    tensors = checkpoint()
    converted = from_token_routed(
        {name: entry.float() if entry.is_floating_point() else entry for name, entry in tensors.items()},
        mlp_type=mlp_type,
        primary_weight=primary,
        layer_index=3,
    )
    layer = converted.engine()
    assert layer.routes == converted.routes == RouteTable(PLANTED, 4)
    assert layer.config.route_weights == (primary, 1 - primary)
    hidden, ids = inputs(torch.float64)
    layer = layer.double()
    layer.load_state_dict({new: tensors[old] for old, new in (("gate_proj_w", "expert_gate"),)}, strict=False)
    single = {name: entry.float().double() if entry.is_floating_point() else entry for name, entry in tensors.items()}
    expected = token_routed(single | {"gate_proj_w": tensors["gate_proj_w"]}, hidden, ids, primary)
    assert_near("converted", layer(hidden, ids), expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_carried_over_to_the_bit(dtype: torch.dtype) -> None:
    tensors = checkpoint(dtype)
    layer = from_token_routed(tensors, mlp_type="token_routed", primary_weight=0.95, layer_index=0).engine()
    assert torch.equal(layer.expert_gate, tensors["gate_proj_w"])
    back, settings = to_serving(layer)
    assert back.keys() == tensors.keys() | {"token_to_expert"}
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    assert torch.equal(back["token_to_expert"], PLANTED[0])
    assert settings["top_k_primary_weight"] == 0.95
    assert settings["mlp_type"] == "token_routed"


def convert(tensors: dict[str, Tensor], **changes: Any) -> ConvertedLayer:
    return from_token_routed(tensors, **{"mlp_type": "token_routed", "primary_weight": 0.5, "layer_index": 0} | changes)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"primary_weight": None}, r"means 0\.95 in checkpoints of TokenRoutedMLP but 1/K"),
        ({}, {"mlp_type": "dense"}, "mlp_type must be one of"),
        ({"router.weight": torch.zeros(1)}, {}, r"don't know how to convert token_routed MLP tensor router\.weight"),
        ({"up_proj_w": None}, {}, "the layer has no up_proj_w"),
        ({"topk_token_to_expert": None}, {}, "the layer has no topk_token_to_expert"),
        ({"topk_token_to_expert": None, "token_to_expert": PLANTED[0]}, {}, "pass top_k as well"),
        ({"topk_token_to_expert": torch.zeros_like(PLANTED)}, {}, "distinct experts"),
        ({"shared_down.weight": None}, {}, r"the layer has no shared_down\.weight"),
        ({}, {"top_k": 1}, "top_k=1, but topk_token_to_expert has 2 routes"),
        ({"shared_up.weight": torch.zeros(SHARED, HIDDEN).bfloat16()}, {}, r"weights are torch\.bfloat16 and torch\.float32"),
        (checkpoint(torch.float64), {}, r"weights are torch\.float64"),
    ],
)
def test_refusals(change: dict[str, Tensor | None], arguments: dict[str, Any], message: str) -> None:
    tensors = {name: entry for name, entry in (checkpoint(torch.float32) | change).items() if entry is not None}
    with pytest.raises(ValueError, match=message):
        convert(tensors, **arguments)


def test_what_is_derived_is_dropped_and_what_is_old_is_read() -> None:
    tensors = checkpoint(torch.float32) | dict.fromkeys(DROPPED, torch.zeros(1))
    assert convert(tensors).routes == convert(tensors, top_k=2).routes == RouteTable(PLANTED, 4)
    del tensors["topk_token_to_expert"]
    converted = from_token_routed(
        tensors | {"token_to_expert": PLANTED[0]}, mlp_type="token_routed", primary_weight=0.95, layer_index=0, top_k=2
    )
    assert torch.equal(converted.routes.experts.long(), torch.stack([PLANTED[0], (PLANTED[0] + 1) % 4]))


@pytest.mark.parametrize(
    ("primary", "error", "message"),
    [
        (PLANTED[0] * 7, ValueError, "out-of-range expert index: 7 at route position 0 of token 1"),
        (PLANTED[0] - 1, ValueError, "out-of-range expert index: -1 at route position 0 of token 0"),
        (PLANTED[0] + 0.9, TypeError, "must hold integers, got float32"),
        (PLANTED[0] == 0, TypeError, "must hold integers, got bool"),
    ],
)
def test_an_old_table_is_checked_before_its_routes_are_counted_on(
    primary: Tensor, error: type[Exception], message: str
) -> None:
    tensors = {name: entry for name, entry in checkpoint(torch.float32).items() if name != "topk_token_to_expert"}
    with pytest.raises(error, match=message):
        convert(tensors | {"token_to_expert": primary}, top_k=2)


@pytest.mark.parametrize("planted", [False, True])
def test_eight_experts_for_four_compute_the_same(planted: bool) -> None:
    """Whatever the seed of the source: its own table is expanded."""
    layer = engine(torch.float64, route_seed=5, layer_index=2, routed_output_scale=2.0)
    if planted:
        layer.load_route_table(PLANTED)
    layer.float()
    larger = expanded(layer).engine()
    assert larger.config.num_experts == 8
    assert larger.config.expert_width == layer.config.expert_width
    assert larger.routes.folded(4) == layer.routes
    assert int((larger.routes.experts >= 4).sum()) > VOCABULARY // 4
    hidden, ids = inputs(torch.float64)
    assert_near("expanded", larger.double()(hidden, ids), layer.double()(hidden, ids), torch.float64)


@pytest.mark.parametrize(("precision", "cast"), [("bf16", torch.float32), ("fp32", torch.bfloat16), ("fp32", torch.float16)])
def test_expansion_keeps_the_bits_of_a_layer_that_was_cast(precision: str, cast: torch.dtype) -> None:
    layer = engine(cast, precision=precision)
    with torch.no_grad():
        layer.expert_gate.mul_(1.001)
    larger = expanded(layer).engine()
    assert {weight.dtype for weight in larger.parameters()} == {cast}
    assert torch.equal(larger.expert_gate, layer.expert_gate.repeat(2, 1, 1))


def test_expansion_refuses_dtypes_that_an_engine_is_not_created_in() -> None:
    with pytest.raises(ValueError, match=r"weights are torch\.float64"):
        expanded(engine(torch.float64))
    mixed = engine()
    mixed.shared_up.half()
    with pytest.raises(ValueError, match=r"weights are torch\.float16 and torch\.float32"):
        expanded(mixed)


@pytest.mark.parametrize("source", [{"num_experts": 8}, {"top_k": 1}, {"num_experts": 2}], ids=str)
def test_other_expansions_are_refused(source: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expansion is from 4 to 8 experts with top_k=2"):
        expanded(engine(**source))
    reduced = engine()
    reduced.set_active_capacity(expert_width=2)
    for function in (expanded, to_serving):
        with pytest.raises(ValueError, match="full capacity"):
            function(reduced)


def test_serving_knows_one_primary_weight() -> None:
    with pytest.raises(ValueError, match="a primary weight and equal others"):
        to_serving(engine(num_experts=8, top_k=4))
    layer = engine(num_experts=8, top_k=4, route_weights=(0.7, 0.1, 0.1, 0.1))
    tensors, settings = to_serving(layer, dtype=torch.bfloat16)
    assert settings["top_k_primary_weight"] == 0.7
    assert {entry.dtype for name, entry in tensors.items() if "token" not in name} == {torch.bfloat16}


SETTINGS = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "intermediate_size": 24, "num_experts": 4, "top_k": 2}


def test_settings_of_a_model() -> None:
    config = layer_config(SETTINGS | {"routing_strategy": "modulo", "num_layers": 5, "rope_theta": 1e4}, 3)
    assert (config.expert_width, config.shared_width, config.layer_index) == (6, 24, 3)
    assert (config.routing_strategy, config.route_weights, config.backend) == ("modulo_cyclic", (0.5, 0.5), "auto")
    assert layer_config(SETTINGS | {"shared_expert": False}, 0).shared_width == 0
    assert layer_config(SETTINGS | {"shared_intermediate_size": 10}, 0).shared_width == 10
    assert layer_config(SETTINGS | {"top_k_primary_weight": 1.5}, 0).route_weights == (1.0, 0.0)
    assert layer_config(SETTINGS | {"top_k_primary_weight": 0.7}, 0).route_weights == pytest.approx((0.7, 0.3))
    alone = layer_config({name: SETTINGS[name] for name in ("hidden_size", "vocab_size", "intermediate_size")}, 0)
    assert (alone.num_experts, alone.top_k, alone.route_weights) == (1, 1, (1.0,))
    assert isinstance(TRHashEngine(config), TRHashEngine)


def test_scales_between_first_and_last_layer() -> None:
    settings = SETTINGS | {"routed_output_scale_first_layer": 1.0, "routed_output_scale_last_layer": 3.0}
    scales = [layer_config(settings, index, num_layers=5).routed_output_scale for index in range(5)]
    assert scales == [1.0, 1.5, 2.0, 2.5, 3.0]
    with pytest.raises(ValueError, match="give num_layers"):
        layer_config(settings, 0)
    for index in (-1, 5, 9):
        with pytest.raises(ValueError, match=rf"layer_index must be one of 0\.\.4, got {index}"):
            layer_config(settings, index, num_layers=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 25}, "TR-Hash routed width must be divisible by num_experts"),
        ({"num_experts": 0}, "TR-Hash routed width must be divisible by num_experts, got 24 for 0"),
        ({"routing_strategy": "token_id_affine_hash"}, "routing_strategy must be one of"),
        ({"routing_strategy": "round_robin"}, "routing_strategy must be one of"),
    ],
)
def test_settings_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_config(SETTINGS | changes, 0)
