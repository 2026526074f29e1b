"""Checkpoints of other TR-Hash implementations to engines and back. Route tables are carried over, never made anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .config import DEFAULT_ROUTE_SEED, Precision, TRHashEngineConfig, TRHashStrategy
from .engine import TRHashEngine
from .model_config import primary_weights
from .route_table import RouteTable
from .stored import DERIVED, ROUTE_TABLE

TOKEN_ROUTED_TYPES = ("token_routed", "sort_split", "sort_split_moe")
RENAMED = {
    "gate_proj_w": "expert_gate",
    "up_proj_w": "expert_up",
    "down_proj_w": "expert_down",
    "shared_gate.weight": "shared_gate.weight",
    "shared_up.weight": "shared_up.weight",
    "shared_down.weight": "shared_down.weight",
}
TABLE, PRIMARY = "topk_token_to_expert", "token_to_expert"
DROPPED = (
    "pair_hash_route_codes",
    "pair_hash_expert_pairs",
    "lsh_planes",
    "lsh_bucket_to_expert",
    "lsh_threshold",
    "last_shared_rms",
    "last_routed_rms",
)
_PRECISIONS = {torch.float32: Precision.FP32, torch.bfloat16: Precision.BF16, torch.float16: Precision.FP16}
_EXPANDED = {4: 8}


@dataclass(frozen=True)
class ConvertedLayer:
    """A layer for an engine: `TRHashEngine(config, routes=routes)`, then `load_state_dict(state)`.

    Attributes:
        config: sizes and dtype of the tensors, weights and scales as stated.
        routes: the checkpoint's own table.
        state: the engine's state dict; tensors are not copied.
    """

    config: TRHashEngineConfig
    routes: RouteTable
    state: dict[str, Tensor]

    def engine(self) -> TRHashEngine:
        """The engine, with this state loaded strictly."""
        layer = TRHashEngine(self.config, routes=self.routes)
        layer.load_state_dict(self.state)
        return layer


def from_token_routed(
    tensors: Mapping[str, Tensor],
    *,
    mlp_type: str,
    primary_weight: float | None,
    layer_index: int,
    top_k: int | None = None,
    routing_strategy: TRHashStrategy | str = TRHashStrategy.MODULO_CYCLIC,
    shared_output_scale: float = 1.0,
    routed_output_scale: float = 1.0,
) -> ConvertedLayer:
    """One layer of a TokenRoutedMLP checkpoint.

    Args:
        tensors: of the layer, under the names of TokenRoutedMLP.
        mlp_type: the checkpoint's; one of `TOKEN_ROUTED_TYPES`.
        primary_weight: of the primary route. A checkpoint that leaves it out was trained with 0.95 by the older code and
            with 1/K by the engine, and its tensors do not tell which: state it.
        layer_index: place of the layer in the model.
        top_k: needed only where there is no table of all routes; the routes are then primary + j modulo E, as the
            serving runtime reads such checkpoints. Beside a table it must be the table's.
        routing_strategy: recorded; the table is the checkpoint's whatever it says.
        shared_output_scale, routed_output_scale: the checkpoint's.

    Raises:
        TypeError: a table of something other than integers.
        ValueError: another mlp_type, a tensor whose meaning is not known, a missing one, weights of several dtypes or of one
            an engine does not have, an unstated primary weight, or a table that is none.
    """
    if mlp_type not in TOKEN_ROUTED_TYPES:
        raise ValueError(f"mlp_type must be one of {TOKEN_ROUTED_TYPES}, got {mlp_type!r}")
    unknown = sorted(tensors.keys() - RENAMED.keys() - {TABLE, PRIMARY, *DROPPED})
    if unknown:
        raise ValueError(f"don't know how to convert token_routed MLP tensor {unknown[0]} (of {len(unknown)} such)")
    shared = any(name.startswith("shared") for name in tensors)
    missing = [name for name in RENAMED if name not in tensors and (shared or not name.startswith("shared"))]
    if missing:
        raise ValueError(f"the layer has no {', '.join(missing)}")
    state = {new: tensors[old] for old, new in RENAMED.items() if old in tensors}
    experts, hidden_size, width = state["expert_gate"].shape
    routes = _carried_table(tensors, experts, top_k)
    if routes.top_k > 1 and primary_weight is None:
        raise ValueError(
            "top_k_primary_weight is not stated, and means 0.95 in checkpoints of TokenRoutedMLP but 1/K in those of the "
            "engine; pass primary_weight=0.95 or 1/K, whichever the checkpoint was trained with"
        )
    config = TRHashEngineConfig(
        hidden_size=hidden_size,
        vocab_size=routes.vocab_size,
        num_experts=experts,
        top_k=routes.top_k,
        shared_width=state["shared_gate.weight"].shape[0] if shared else 0,
        expert_width=width,
        routing_strategy=TRHashStrategy(routing_strategy),
        layer_index=layer_index,
        route_weights=primary_weights(primary_weight, routes.top_k),
        shared_output_scale=shared_output_scale,
        routed_output_scale=routed_output_scale,
        precision=_precision(state),
    )
    return ConvertedLayer(config, routes, state | {ROUTE_TABLE: routes.experts})


def expanded(layer: TRHashEngine) -> ConvertedLayer:
    """The same function with twice the experts: each is there twice, and tokens are shared out between the two.

    Args:
        layer: of four experts, top-2, at full capacity.

    Returns:
        A layer of eight experts under the hierarchical strategy, whose table folds back to the present one. Its precision is
        what the weights are, also where they were cast.

    Raises:
        ValueError: another number of experts or routes, reduced capacity, or weights of several dtypes or of one an engine
            does not have.
    """
    config = layer.config
    if config.num_experts not in _EXPANDED or config.top_k != 2 or layer.is_reduced:
        raise ValueError(
            f"expansion is from 4 to 8 experts with top_k=2 at full capacity, got {config.num_experts} experts, "
            f"top_k={config.top_k}, {layer.capacity}"
        )
    experts = _EXPANDED[config.num_experts]
    routes = layer.routes.expanded(experts, layer_index=config.layer_index)
    state = {name: entry for name, entry in layer.state_dict().items() if name not in (ROUTE_TABLE, *DERIVED)}
    for name in ("expert_gate", "expert_up", "expert_down"):
        state[name] = torch.cat([state[name], state[name]])
    changed = config.replaced(
        num_experts=experts,
        routing_strategy=TRHashStrategy.HIERARCHICAL_HASH,
        route_seed=DEFAULT_ROUTE_SEED,
        precision=_precision(state),
    )
    return ConvertedLayer(changed, routes, state | {ROUTE_TABLE: routes.experts})


def to_serving(layer: TRHashEngine, *, dtype: torch.dtype | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The layer under the names and settings of the serving runtime (TR-Hash-i64).

    Args:
        layer: at full capacity.
        dtype: to cast weights to; None keeps theirs.

    Returns:
        Tensors, the table as int64 [K, V] `topk_token_to_expert` with its first row as `token_to_expert`; and settings,
        which state the primary weight, because the runtime reads a missing one as 0.95.

    Raises:
        ValueError: reduced capacity, or route weights that are not a primary one and equal others.
    """
    config = layer.config
    if layer.is_reduced:
        raise ValueError(f"{layer.capacity} is in use; restore the full capacity before exporting")
    weights = config.route_weights
    if any(abs(one - other) > 1e-12 for one, other in zip(weights, primary_weights(weights[0], config.top_k), strict=True)):
        raise ValueError(f"the serving runtime knows a primary weight and equal others, not {weights}")
    state = layer.state_dict()
    tensors = {old: state[new].to(dtype or state[new].dtype) for old, new in RENAMED.items() if new in state}
    table = layer.routes.experts.to(torch.int64)
    settings = {
        "mlp_type": "token_routed",
        "source_mlp_type": "tr_hash_engine",
        "routing_strategy": str(config.routing_strategy),
        "num_experts": config.num_experts,
        "top_k": config.top_k,
        "top_k_primary_weight": weights[0],
        "shared_output_scale": config.shared_output_scale,
        "routed_output_scale": config.routed_output_scale,
        "use_shared_routed_gates": False,
    }
    return tensors | {TABLE: table, PRIMARY: table[0].clone()}, settings


def _carried_table(tensors: Mapping[str, Tensor], experts: int, top_k: int | None) -> RouteTable:
    if TABLE in tensors:
        table = RouteTable(tensors[TABLE], experts)
        if top_k not in (None, table.top_k):
            raise ValueError(f"top_k={top_k}, but {TABLE} has {table.top_k} routes; leave top_k out")
        return table
    if PRIMARY not in tensors or top_k is None:
        raise ValueError(f"the layer has no {TABLE}; with {PRIMARY} alone, pass top_k as well")
    primary = RouteTable(tensors[PRIMARY][None], experts).experts.to(torch.int64)  # the modulo would hide wrong ids
    return RouteTable(torch.cat([(primary + position) % experts for position in range(top_k)]), experts)


def _precision(weights: Mapping[str, Tensor]) -> Precision:
    """The one that parameters are created in to hold these weights to the bit."""
    dtypes = {weight.dtype for weight in weights.values()}
    if len(dtypes) > 1 or not dtypes <= _PRECISIONS.keys():
        found = " and ".join(sorted(map(str, dtypes)))
        raise ValueError(
            f"weights are {found}; an engine has one of {[str(each) for each in _PRECISIONS]} for all, so cast them"
        )
    return _PRECISIONS[dtypes.pop()]
