"""The layer written token by token in float64, and engines to compare with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foldfx.runtime.tr_hash import TR_HASH_MLP, TRHashEngine, TRHashEngineConfig, TRHashStrategy
from foldfx.runtime.tr_hash.call import Call
from foldfx.runtime.tr_hash.traceable import traceable_forward

HIDDEN, VOCABULARY, SHARED, WIDTH = 12, 50, 10, 6
SIZES = [(experts, top_k) for experts in (1, 2, 4, 8, 16) for top_k in (1, 2, 4) if top_k <= experts]
WEIGHTS = {1: (1.0,), 2: (0.7, 0.3), 4: (0.4, 0.3, 0.2, 0.1)}

LIMITS = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (5e-6, 1e-6),
    torch.bfloat16: (6e-2, 1e-2),
    torch.float16: (8e-3, 1.5e-3),
}
"""Largest absolute difference to float64 for values near 1, and relative L2: a few roundings of each dtype."""

TRACEABLE = "traceable"


def engine(dtype: torch.dtype | None = torch.float32, **values: Any) -> TRHashEngine:
    """A small engine with weights large enough for outputs near 1."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "shared_width": SHARED, "expert_width": WIDTH}
    weights = {"route_weights": WEIGHTS[values.get("top_k", 2)], "initializer_range": 0.5, "precision": "fp32"}
    return TRHashEngine(TRHashEngineConfig(**sizes | weights | values)).to(dtype=dtype)


def strategies(experts: int, top_k: int) -> list[TRHashStrategy]:
    """Those that can serve these sizes."""
    hierarchical = experts >= 4 and top_k <= experts // 2
    return [each for each in TRHashStrategy if hierarchical or each is not TRHashStrategy.HIERARCHICAL_HASH]


def inputs(dtype: torch.dtype, batch: int = 2, length: int = 5) -> tuple[Tensor, Tensor]:
    """Hidden states and ids, two of them outside the vocabulary."""
    ids = torch.randint(VOCABULARY, (batch, length))
    ids[0, 0], ids[-1, -1] = -3, VOCABULARY + 7
    return torch.randn(batch, length, HIDDEN).to(dtype), ids


def run(layer: TRHashEngine, hidden: Tensor, ids: Tensor, lowering: str) -> Tensor:
    """The engine's operation with the lowering named, or its form for graphs."""
    config = layer.config
    shared = [None] * 3 if layer.shared_gate is None else [layer.shared_gate, layer.shared_up, layer.shared_down]
    return (_traceable if lowering == TRACEABLE else TR_HASH_MLP)(
        hidden,
        ids,
        layer.route_table,
        layer.expert_gate,
        layer.expert_up,
        layer.expert_down,
        *(each if each is None else each.weight for each in shared),
        list(config.route_weights),
        config.shared_output_scale,
        config.routed_output_scale,
        config.out_of_range,
        lowering,
    )


def _traceable(*arguments: Any) -> Tensor:
    return traceable_forward(Call(*arguments))


def by_token(layer: TRHashEngine, hidden: Tensor, ids: Tensor, table: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The layer in float64, one token after the other, and its parameters as float64 leaves."""
    config, routes = layer.config, layer.routes.experts.tolist() if table is None else table.tolist()
    weights = {name: weight.detach().double().requires_grad_() for name, weight in layer.named_parameters()}
    rows = []
    for x, token in zip(hidden.reshape(-1, hidden.shape[-1]), ids.flatten().tolist(), strict=True):
        clamped = min(max(token, 0), config.vocab_size - 1)
        y = torch.zeros_like(x)
        if config.shared_width:
            gate, up = weights["shared_gate.weight"] @ x, weights["shared_up.weight"] @ x
            y = y + config.shared_output_scale * (weights["shared_down.weight"] @ (gate * torch.sigmoid(gate) * up))
        for position, weight in enumerate(config.route_weights):
            expert = routes[position][clamped]
            gate, up = x @ weights["expert_gate"][expert], x @ weights["expert_up"][expert]
            chosen = (gate * torch.sigmoid(gate) * up) @ weights["expert_down"][expert]
            y = y + config.routed_output_scale * weight * chosen
        rows.append(y)
    return torch.stack(rows).reshape(hidden.shape), weights


def assert_near(name: str, found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within `LIMITS`, the absolute one scaled where values exceed 1."""
    most, relative = LIMITS[dtype]
    difference = (found.detach().double() - expected.detach()).abs()
    scale = max(1.0, float(expected.abs().max()))
    assert float(difference.max()) <= most * scale, f"{name}: max-abs {float(difference.max()):.2e} at scale {scale:.2f}"
    norm = float(expected.norm())
    error = float(difference.norm()) / norm if norm else float(difference.norm())
    assert error <= relative, f"{name}: relative L2 {error:.2e}"
