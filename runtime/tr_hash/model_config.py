"""A layer's configuration from the settings of the model it is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import TRHashEngineConfig, TRHashStrategy

STRATEGIES = {
    "modulo": TRHashStrategy.MODULO_CYCLIC,
    **{str(each): each for each in TRHashStrategy if each is not TRHashStrategy.AFFINE_HASH},
}
WITHOUT_EFFECT = {
    "static_expert_capacity": "every token reaches its experts, so there is no capacity to fix",
    "telemetry": "routes are constant; RouteTable.occupancy() tells them",
    "tensor_parallel_size": "experts are not sharded; run replicas under DistributedDataParallel",
}
_OFF: tuple[object, ...] = (None, False, 0, "false")
_OFF_VALUES = dict.fromkeys(WITHOUT_EFFECT, _OFF) | {"tensor_parallel_size": (*_OFF, 1)}


def layer_config(
    settings: Mapping[str, Any], layer_index: int, *, num_layers: int | None = None, precision: str = "bf16"
) -> TRHashEngineConfig:
    """The layer at `layer_index` of a model with these settings.

    `intermediate_size` is the width of all experts together, and that of the shared branch unless
    `shared_intermediate_size` says otherwise. Without `top_k_primary_weight` routes count 1/K each (in checkpoints of the
    older TokenRoutedMLP they counted 0.95 and the rest: see `convert`). `use_custom_kernels` or `use_cggr` False keeps
    every custom kernel off. Scales with `_first_layer` and `_last_layer` are linear in between.

    Args:
        settings: hidden_size, vocab_size and intermediate_size; other keys that concern the layer are optional, and keys
            of other parts of the model are not read.
        num_layers: needed where a scale differs between first and last layer.

    Raises:
        KeyError: a needed setting is missing.
        ValueError: a layer the model does not have, a strategy it does not offer, a width that experts cannot share equally,
            or a setting that would have no effect, with the reason.
    """
    for name, why in WITHOUT_EFFECT.items():
        if not _is_off(name, settings.get(name)):
            raise ValueError(f"{name}={settings[name]!r} would have no effect: {why}")
    if num_layers is not None and not 0 <= layer_index < num_layers:
        raise ValueError(f"layer_index must be one of 0..{num_layers - 1}, got {layer_index}")
    strategy = settings.get("routing_strategy", "modulo_cyclic")
    if strategy not in STRATEGIES:
        raise ValueError(f"a model's routing_strategy must be one of {sorted(STRATEGIES)}, got {strategy!r}")
    experts, top_k, routed = settings.get("num_experts", 1), settings.get("top_k", 1), settings["intermediate_size"]
    if not experts or routed % experts:
        raise ValueError(f"TR-Hash routed width must be divisible by num_experts, got {routed} for {experts}")
    shared = settings.get("shared_intermediate_size") or routed
    return TRHashEngineConfig(
        hidden_size=settings["hidden_size"],
        vocab_size=settings["vocab_size"],
        num_experts=experts,
        top_k=top_k,
        shared_width=shared if settings.get("shared_expert", True) else 0,
        expert_width=routed // experts,
        routing_strategy=STRATEGIES[strategy],
        layer_index=layer_index,
        route_hash_count=settings.get("route_hash_count", 2),
        route_weights=primary_weights(settings.get("top_k_primary_weight"), top_k),
        shared_output_scale=_scale(settings, "shared_output_scale", layer_index, num_layers),
        routed_output_scale=_scale(settings, "routed_output_scale", layer_index, num_layers),
        precision=precision,  # type: ignore[arg-type]
        backend=_backend(settings),  # type: ignore[arg-type]
    )


def primary_weights(primary: float | None, top_k: int) -> tuple[float, ...]:
    """Route weights from that of the primary route, held to 0..1; the others share the rest equally.

    Args:
        primary: None for 1/K each.
    """
    if top_k == 1:
        return (1.0,)
    if primary is None:
        return (1 / top_k,) * top_k
    held = min(max(primary, 0.0), 1.0)
    return (held, *[(1 - held) / (top_k - 1)] * (top_k - 1))


def _is_off(name: str, value: object) -> bool:
    """Whether a setting asks for nothing; by type too, because True equals 1."""
    return any(type(value) is type(off) and value == off for off in _OFF_VALUES[name])


def _backend(settings: Mapping[str, Any]) -> str:
    for name in ("use_custom_kernels", "use_cggr"):
        if settings.get(name) in (False, "false"):
            return "pytorch"
    return "cggr" if settings.get("use_cggr") in (True, "true") else "auto"


def _scale(settings: Mapping[str, Any], name: str, layer_index: int, num_layers: int | None) -> float:
    base = settings.get(name, 1.0)
    first, last = (settings.get(f"{name}_{end}_layer") for end in ("first", "last"))
    if first is None and last is None:
        return float(base)
    if num_layers is None:
        raise ValueError(f"{name} differs between layers; give num_layers")
    first, last = (base if end is None else end for end in (first, last))
    return float(first + (last - first) * layer_index / max(num_layers - 1, 1))
