"""A layer's sizes, settings and backend as plain data."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from .backends import BackendDecision, Circumstances, declined
from .capacity import Capacity
from .config import TRHashEngineConfig
from .pair_codes import pairs_eligible

_DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def capability_summary(
    circumstances: Circumstances, decision: BackendDecision, capacity: Capacity, dtype: torch.dtype
) -> dict[str, Any]:
    """The contract's 21 entries, and `declined`: why each faster backend does not serve this device.

    Widths are those stored; `active_*` are those in use. `precision` is what the parameters are, `world_size` that of the
    process group where there is one.

    Args:
        circumstances: of the layer on the device in question.
        decision: taken on them.
        capacity: in use.
        dtype: of the parameters.
    """
    config = circumstances.config
    world_size = _group_size() or config.world_size
    in_use = config.replaced(num_experts=capacity.num_experts, expert_width=capacity.expert_width)
    return {
        "experts": config.num_experts,
        "top_k": config.top_k,
        "shared_width": config.shared_width,
        "expert_width": config.expert_width,
        "stored_width": config.stored_mlp_width,
        "active_width": in_use.active_mlp_width,
        "active_width_fraction": in_use.active_mlp_width / config.stored_mlp_width,
        "active_num_experts": capacity.num_experts,
        "active_expert_width": capacity.expert_width,
        "is_reduced_capacity": circumstances.reduced,
        "attention": str(config.attention_backbone),
        "routing": str(config.routing_strategy),
        "phase": str(config.phase),
        "precision": _DTYPE_NAMES.get(dtype, str(dtype)),
        "world_size": world_size,
        "parallelism": "replicated_ddp" if world_size > 1 else "single_device",
        "requested_backend": str(decision.requested),
        "selected_backend": str(decision.selected),
        "backend_reasons": list(decision.reasons),
        "fused_cuda_eligible": pairs_eligible(config.num_experts, config.top_k),
        "cuda_graph_buckets": [[bucket.batch_size, bucket.sequence_length] for bucket in config.graph_buckets],
        "declined": {str(backend): why for backend, why in declined(circumstances).items() if backend is not decision.selected},
    }


def require_world_size(config: TRHashEngineConfig) -> None:
    """Refuse a stated number of processes that is not the process group's.

    Raises:
        ValueError: the configuration says more than one, and the group has another size.
    """
    group = _group_size()
    if config.world_size > 1 and group is not None and group != config.world_size:
        raise ValueError(f"config.world_size is {config.world_size}, but the process group has {group} processes")


def _group_size() -> int | None:
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_world_size()
