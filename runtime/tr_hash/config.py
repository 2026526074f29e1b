"""What a TR-Hash layer is: sizes, routing, scales and how it is to run. Checked once, immutable afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Literal, NoReturn

from .buckets import GraphBucket

SUPPORTED_EXPERTS = (1, 2, 4, 8, 16)
SUPPORTED_TOP_K = (1, 2, 4)
DEFAULT_ROUTE_SEED = 0x71D5A17
LARGEST_VOCABULARY = 2**31 - 1
WEIGHT_SUM_TOLERANCE = 1e-6

OutOfRange = Literal["clamp", "error"]
OUT_OF_RANGE: tuple[OutOfRange, ...] = ("clamp", "error")


class _Setting(StrEnum):
    """One of a few words; another one is refused with the list of them."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"{value!r} is not a valid {cls.__name__}; there are {[str(each) for each in cls]}")


class TRHashStrategy(_Setting):
    """How a route table is constructed; the formulas are in `strategies`."""

    MODULO_CYCLIC = "modulo_cyclic"
    BALANCED_HASH = "token_id_balanced_hash"
    AFFINE_HASH = "token_id_affine_hash"
    MULTI_HASH = "token_id_multi_hash"
    HIERARCHICAL_HASH = "token_id_hierarchical_hash"


class AttentionBackbone(_Setting):
    """The attention beside the layer; it changes nothing here."""

    GQA = "gqa"
    MHA = "mha"


class Phase(_Setting):
    """What the layer is built for; CUDA graphs serve inference alone."""

    TRAINING = "training"
    INFERENCE = "inference"


class Precision(_Setting):
    """The dtype the parameters are created in. FP8 and INT8 have no kernel yet: an engine refuses them."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"


class Backend(_Setting):
    """Who is asked to compute the layer."""

    AUTO = "auto"
    PYTORCH = "pytorch"
    CGGR = "cggr"
    FUSED_CUDA = "fused_cuda"
    CUDA_GRAPH = "cuda_graph"


@dataclass(frozen=True)
class TRHashEngineConfig:
    """A TR-Hash layer.

    Attributes:
        hidden_size: H, the width of the hidden states.
        vocab_size: V; token ids are 0..V-1.
        num_experts: E, one of 1, 2, 4, 8, 16.
        top_k: K, experts of each token: 1, 2 or 4, at most E.
        shared_width: width of the SwiGLU that every token passes; 0 for none.
        expert_width: W, width of each expert.
        initializer_range: standard deviation of all initial weights.
        routing_strategy: a `TRHashStrategy` or its value.
        layer_index: salt of the route table.
        route_seed: salt of the route table, any integer; it counts modulo 2³².
        route_hash_count: channels of the multi-hash, 2 to 8.
        route_weights: a, the weight of each route position; () stands for 1/K each. They stay Python floats, so that no
            cast of the module rounds them.
        shared_output_scale, routed_output_scale: factors of the two branches.
        attention_backbone: recorded only.
        phase, precision, backend: see the enumerations.
        world_size: processes of a data-parallel run; 1 leaves it unsaid.
        graph_buckets: shapes to capture CUDA graphs for, kept sorted by tokens, batch and length.
        out_of_range: what ids outside 0..V-1 do: `clamp` to the nearest id, or `error` (IndexError at the call).

    Raises:
        TypeError: a field of another type (bool is no integer here).
        ValueError: a value outside its range; NaN and infinities are outside every range.
    """

    hidden_size: int
    vocab_size: int
    num_experts: int = 4
    top_k: int = 2
    shared_width: int = 128
    expert_width: int = 48
    initializer_range: float = 0.02
    routing_strategy: TRHashStrategy = TRHashStrategy.BALANCED_HASH
    layer_index: int = 0
    route_seed: int = DEFAULT_ROUTE_SEED
    route_hash_count: int = 2
    route_weights: tuple[float, ...] = ()
    shared_output_scale: float = 1.0
    routed_output_scale: float = 1.0
    attention_backbone: AttentionBackbone = AttentionBackbone.GQA
    phase: Phase = Phase.TRAINING
    precision: Precision = Precision.BF16
    backend: Backend = Backend.AUTO
    world_size: int = 1
    graph_buckets: tuple[GraphBucket, ...] = ()
    out_of_range: OutOfRange = "clamp"

    def __post_init__(self) -> None:
        """Fields in their order, then what weights and graphs need together; the first that is wrong is named."""
        for field in fields(self):
            value = _of_type(field.name, str(field.type), getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            for holds, rule in _RULES.get(field.name, ()):
                _require(holds(value, self), f"{field.name} {rule.format(self)}, got {value!r}")
        self._check_weights()
        self._check_graphs()

    def _check_weights(self) -> None:
        weights = tuple(_finite("route_weights", weight) for weight in self.route_weights) or (1 / self.top_k,) * self.top_k
        _require(
            len(weights) == self.top_k,
            f"route_weights must contain exactly top_k values, got {len(weights)} for top_k={self.top_k}",
        )
        _require(min(weights) >= 0, f"route_weights must be non-negative, got {weights}")
        _require(abs(sum(weights) - 1) <= WEIGHT_SUM_TOLERANCE, f"route_weights must sum to 1, got {weights}")
        object.__setattr__(self, "route_weights", weights)

    def _check_graphs(self) -> None:
        if self.backend is Backend.CUDA_GRAPH:
            _require(self.phase is Phase.INFERENCE, "CUDA Graph execution is inference-only; set phase='inference'")
            _require(bool(self.graph_buckets), "CUDA Graph execution requires at least one graph bucket; set graph_buckets")

    @property
    def stored_routed_width(self) -> int:
        """E · W."""
        return self.num_experts * self.expert_width

    @property
    def active_routed_width(self) -> int:
        """K · W."""
        return self.top_k * self.expert_width

    @property
    def stored_mlp_width(self) -> int:
        """Width of the dense SwiGLU that holds as many weights."""
        return self.shared_width + self.stored_routed_width

    @property
    def active_mlp_width(self) -> int:
        """Width of the dense SwiGLU that does as many multiplications for a token."""
        return self.shared_width + self.active_routed_width

    @property
    def active_width_fraction(self) -> float:
        """Active width / stored width."""
        return self.active_mlp_width / self.stored_mlp_width

    def replaced(self, **changes: Any) -> TRHashEngineConfig:
        """A copy with other values, checked anew."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; floats survive a JSON round trip to the bit."""
        written = {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}
        buckets = [[bucket.batch_size, bucket.sequence_length] for bucket in self.graph_buckets]
        return written | {"route_weights": list(self.route_weights), "graph_buckets": buckets}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> TRHashEngineConfig:
        """The inverse of `to_dict`.

        Raises:
            TypeError, ValueError: an unknown or missing field, or one the constructor refuses.
        """
        values = dict(written)
        values["route_weights"] = tuple(values.get("route_weights", ()))
        values["graph_buckets"] = tuple(GraphBucket(*pair) for pair in values.get("graph_buckets", ()))
        return cls(**values)


_ENUMERATIONS: dict[str, Callable[[Any], StrEnum]] = {
    each.__name__: each for each in (TRHashStrategy, AttentionBackbone, Phase, Precision, Backend)
}


_Rule = tuple[Callable[[Any, TRHashEngineConfig], bool], str]
"""Whether a field's value may stand in a configuration whose earlier fields may, and what it must be."""

_POSITIVE: _Rule = (lambda value, _: value > 0, "must be positive")
_NOT_NEGATIVE: _Rule = (lambda value, _: value >= 0, "must be non-negative")


def _one_of(allowed: tuple[Any, ...]) -> _Rule:
    return lambda value, _: value in allowed, f"must be one of {allowed}"


_RULES: dict[str, tuple[_Rule, ...]] = {
    "hidden_size": (_POSITIVE,),
    "vocab_size": (_POSITIVE, (lambda value, _: value <= LARGEST_VOCABULARY, f"must be at most {LARGEST_VOCABULARY}")),
    "num_experts": (_one_of(SUPPORTED_EXPERTS),),
    "top_k": (
        _one_of(SUPPORTED_TOP_K),
        (lambda value, config: value <= config.num_experts, "cannot exceed num_experts ({0.num_experts})"),
    ),
    "shared_width": (_NOT_NEGATIVE,),
    "expert_width": (_POSITIVE,),
    "initializer_range": (_POSITIVE,),
    "layer_index": (_NOT_NEGATIVE,),
    "route_hash_count": ((lambda value, _: 2 <= value <= 8, "must be between 2 and 8"),),
    "shared_output_scale": (_NOT_NEGATIVE,),
    "routed_output_scale": (_NOT_NEGATIVE,),
    "world_size": (_POSITIVE,),
    "out_of_range": (_one_of(OUT_OF_RANGE),),
}


def _of_type(name: str, annotation: str, value: Any) -> Any:
    """`value` as the field holds it.

    Raises:
        TypeError: it is of another type.
        ValueError: it is no member of the field's enumeration, or not finite.
    """
    if annotation == "int" and type(value) is not int:
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if annotation == "float":
        return _finite(name, value)
    if annotation in _ENUMERATIONS:
        return _ENUMERATIONS[annotation](value)
    if name == "graph_buckets":
        buckets = tuple(value)
        if not all(isinstance(bucket, GraphBucket) for bucket in buckets):
            raise TypeError(f"graph_buckets must be a sequence of GraphBucket, got {buckets!r}")
        return tuple(sorted(set(buckets)))
    return value


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an int beyond the largest float") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number
