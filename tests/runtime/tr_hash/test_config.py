"""The configuration: defaults, every refusal, derived widths, and a lossless way through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from foldfx.runtime.tr_hash import GraphBucket, TRHashEngineConfig

NEEDED = {"hidden_size": 8, "vocab_size": 16}
INTEGERS = (
    "hidden_size", "vocab_size", "num_experts", "top_k", "shared_width", "expert_width", "layer_index", "route_seed",
    "route_hash_count", "world_size",
)  # fmt: skip
NUMBERS = ("initializer_range", "shared_output_scale", "routed_output_scale")


def config(**values: Any) -> TRHashEngineConfig:
    return TRHashEngineConfig(**NEEDED | values)


def test_defaults() -> None:
    assert config().to_dict() == {
        "hidden_size": 8,
        "vocab_size": 16,
        "num_experts": 4,
        "top_k": 2,
        "shared_width": 128,
        "expert_width": 48,
        "initializer_range": 0.02,
        "routing_strategy": "token_id_balanced_hash",
        "layer_index": 0,
        "route_seed": 119364119,
        "route_hash_count": 2,
        "route_weights": [0.5, 0.5],
        "shared_output_scale": 1.0,
        "routed_output_scale": 1.0,
        "attention_backbone": "gqa",
        "phase": "training",
        "precision": "bf16",
        "backend": "auto",
        "world_size": 1,
        "graph_buckets": [],
        "out_of_range": "clamp",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be positive"),
        ({"vocab_size": -1}, "vocab_size must be positive"),
        ({"vocab_size": 2**31}, "vocab_size must be at most 2147483647"),
        ({"num_experts": 3}, r"num_experts must be one of \(1, 2, 4, 8, 16\), got 3"),
        ({"top_k": 3}, r"top_k must be one of \(1, 2, 4\), got 3"),
        ({"top_k": 4, "num_experts": 2}, "top_k cannot exceed num_experts"),
        ({"shared_width": -1}, "shared_width must be non-negative"),
        ({"expert_width": 0}, "expert_width must be positive"),
        ({"initializer_range": 0}, "initializer_range must be positive"),
        (
            {"routing_strategy": "foo"},
            r"'foo' is not a valid TRHashStrategy; there are \['modulo_cyclic', .*'token_id_multi_hash'",
        ),
        ({"layer_index": -1}, "layer_index must be non-negative"),
        ({"route_hash_count": 1}, "route_hash_count must be between 2 and 8"),
        ({"route_hash_count": 9, "routing_strategy": "modulo_cyclic"}, "route_hash_count must be between 2 and 8"),
        ({"route_weights": (1.0,)}, "route_weights must contain exactly top_k values"),
        ({"route_weights": (1.5, -0.5)}, "route_weights must be non-negative"),
        ({"route_weights": (0.5, 0.4)}, "route_weights must sum to 1"),
        ({"route_weights": (math.nan, 0.5)}, "route_weights must be finite"),
        ({"route_weights": (math.inf, 0.5)}, "route_weights must be finite"),
        ({"shared_output_scale": -1.0}, "shared_output_scale must be non-negative"),
        ({"routed_output_scale": -1.0}, "routed_output_scale must be non-negative"),
        ({"routed_output_scale": math.nan}, "routed_output_scale must be finite"),
        ({"initializer_range": 10**400}, "initializer_range must be finite, got an int beyond the largest float"),
        ({"route_weights": (10**400, 0)}, "route_weights must be finite, got an int beyond the largest float"),
        ({"attention_backbone": "mla"}, "is not a valid AttentionBackbone"),
        ({"phase": "eval"}, "is not a valid Phase"),
        ({"precision": "fp64"}, "is not a valid Precision"),
        ({"backend": "triton"}, "is not a valid Backend"),
        ({"world_size": 0}, "world_size must be positive"),
        ({"backend": "cuda_graph"}, "CUDA Graph execution is inference-only"),
        ({"backend": "cuda_graph", "phase": "inference"}, "at least one graph bucket"),
        ({"out_of_range": "wrap"}, "out_of_range must be one of"),
    ],
)
def test_refused_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**values)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, 4.0, "4", None])
def test_integers_are_integers(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an int, got {value!r}"):
        config(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "1", None])
def test_numbers_are_numbers(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        config(**{name: value})


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="route_weights must be a number"):
        config(route_weights=(True, False))
    with pytest.raises(TypeError, match="GraphBucket"):
        config(graph_buckets=((1, 2),))


IN_ORDER: list[tuple[str, object]] = [
    ("hidden_size", 0),
    ("vocab_size", 0),
    ("num_experts", 3),
    ("top_k", 3),
    ("shared_width", -1),
    ("expert_width", 0),
    ("initializer_range", 0),
    ("TRHashStrategy", {"routing_strategy": "foo"}),
    ("layer_index", -1),
    ("route_seed", None),
    ("route_hash_count", 1),
    ("shared_output_scale", -1.0),
    ("routed_output_scale", math.nan),
    ("AttentionBackbone", {"attention_backbone": "mla"}),
    ("Phase", {"phase": "eval"}),
    ("Precision", {"precision": "fp64"}),
    ("Backend", {"backend": "triton"}),
    ("world_size", 0),
    ("GraphBucket", {"graph_buckets": ((1, 2),)}),
    ("out_of_range", "wrap"),
    ("route_weights", (0.1, 0.1)),
]


def test_the_first_wrong_field_is_named() -> None:
    """Whatever else is wrong behind it: fields in their order, then route weights, then what graphs need."""
    wrong: dict[str, Any] = {"backend": "cuda_graph"}
    for name, value in reversed(IN_ORDER):
        wrong |= value if isinstance(value, dict) else {name: value}
        with pytest.raises((TypeError, ValueError), match=name):
            config(**wrong)
    with pytest.raises(ValueError, match="inference-only"):
        config(backend="cuda_graph")


def test_top_k_is_held_against_the_experts_before_later_fields() -> None:
    with pytest.raises(ValueError, match=r"top_k cannot exceed num_experts \(2\), got 4"):
        config(num_experts=2, top_k=4, shared_width=-1)
    assert config(num_experts=4, top_k=4).route_weights == (0.25,) * 4


def test_widths() -> None:
    released = config(shared_width=3072, expert_width=64)
    assert (released.stored_routed_width, released.active_routed_width) == (256, 128)
    assert (released.stored_mlp_width, released.active_mlp_width) == (3328, 3200)
    assert released.active_width_fraction == 3200 / 3328


def test_buckets_are_sorted_and_kept_once() -> None:
    buckets = tuple(GraphBucket(*shape) for shape in ((4, 128), (1, 512), (2, 256), (1, 512), (1, 1)))
    assert [(b.batch_size, b.sequence_length) for b in config(graph_buckets=buckets).graph_buckets] == [
        (1, 1), (1, 512), (2, 256), (4, 128),
    ]  # fmt: skip


def test_fields_may_come_from_a_generator() -> None:
    shapes = ((1, 2), (1, 1))
    given = config(graph_buckets=(GraphBucket(*shape) for shape in shapes), route_weights=(each / 4 for each in (3, 1)))
    assert given.graph_buckets == (GraphBucket(1, 1), GraphBucket(1, 2))
    assert given.route_weights == (0.75, 0.25)


def test_json_keeps_every_bit() -> None:
    before = config(
        route_weights=(0.7, 0.3),
        routed_output_scale=1 / 3,
        graph_buckets=(GraphBucket(2, 3),),
        routing_strategy="modulo_cyclic",
    )
    assert TRHashEngineConfig.from_dict(json.loads(json.dumps(before.to_dict()))) == before
    with pytest.raises(TypeError, match="colour"):
        TRHashEngineConfig.from_dict({**NEEDED, "colour": 1})


def test_frozen_and_replaced() -> None:
    before = config()
    with pytest.raises(FrozenInstanceError):
        before.top_k = 1  # type: ignore[misc]
    assert before.replaced(num_experts=8).num_experts == 8
    with pytest.raises(ValueError, match="top_k cannot exceed"):
        before.replaced(num_experts=1)
