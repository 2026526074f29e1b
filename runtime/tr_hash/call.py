"""The arguments of a TR-Hash layer as the operation takes them, and what they must satisfy."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .choice import AUTO, choose, require_possible
from .config import OUT_OF_RANGE
from .routing import require_integer_ids


class Call(NamedTuple):
    """The arguments of the operation.

    Attributes:
        hidden: [..., H], of the experts' dtype and device.
        token_ids: integers [...].
        route_table: uint8 [K, V].
        expert_gate, expert_up: [E, H, W].
        expert_down: [E, W, H].
        shared_gate, shared_up: [S, H], or None.
        shared_down: [H, S], or None.
        route_weights: K numbers.
        shared_scale, routed_scale: factors of the branches.
        out_of_range: `clamp` or `error`.
        lowering: `auto`, or one of `choice.LOWERINGS`.
    """

    hidden: Tensor
    token_ids: Tensor
    route_table: Tensor
    expert_gate: Tensor
    expert_up: Tensor
    expert_down: Tensor
    shared_gate: Tensor | None
    shared_up: Tensor | None
    shared_down: Tensor | None
    route_weights: list[float]
    shared_scale: float
    routed_scale: float
    out_of_range: str = "clamp"
    lowering: str = AUTO

    @property
    def factors(self) -> list[float]:
        """Of each route position: weight times scale."""
        return [weight * self.routed_scale for weight in self.route_weights]

    @property
    def experts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, up and down."""
        return self.expert_gate, self.expert_up, self.expert_down

    @property
    def shared(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Gate, up and down, if there is a shared branch."""
        if self.shared_gate is None or self.shared_up is None or self.shared_down is None:
            return None
        return self.shared_gate, self.shared_up, self.shared_down

    def resolved(self) -> str:
        """The lowering, chosen where the call leaves it open."""
        if self.lowering != AUTO:
            return self.lowering
        tokens = self.token_ids.numel()
        return choose(
            tokens=tokens if isinstance(tokens, int) else None,
            num_experts=self.expert_gate.shape[0],
            expert_width=self.expert_gate.shape[2],
            weights=self.factors,
            device_type=self.hidden.device.type,
        ).lowering

    def check(self) -> None:
        """Refuse operands that do not fit together.

        Raises:
            TypeError: ids that are not integers, a table that is not bytes, or operands of several dtypes.
            ValueError: shapes that do not fit, ids or hidden states on meta alone, or an unknown setting.
        """
        require_integer_ids(self.token_ids)
        if self.token_ids.is_meta != self.hidden.is_meta:
            raise ValueError(
                f"token_ids are on {self.token_ids.device}, hidden on {self.hidden.device}; move them to one device"
            )
        require_possible(self.lowering, self.factors)
        if self.out_of_range not in OUT_OF_RANGE:
            raise ValueError(f"out_of_range must be one of {OUT_OF_RANGE}, not {self.out_of_range!r}")
        table, hidden = self.route_table, self.hidden
        if table.dtype != torch.uint8:
            raise TypeError(f"route_table must be uint8 [K, V], got {table.dtype}")
        if table.dim() != 2 or table.shape[0] != len(self.route_weights):
            raise ValueError(f"route_table is {tuple(table.shape)}, not [{len(self.route_weights)}, V]")
        experts, width, inner = self.expert_gate.shape
        _require("expert_up", self.expert_up, (experts, width, inner), hidden)
        _require("expert_down", self.expert_down, (experts, inner, width), hidden)
        if self.shared_gate is None:
            if self.shared_up is not None or self.shared_down is not None:
                raise ValueError("shared_gate is None, but shared_up or shared_down is not; give all three, or none")
        else:
            shared = self.shared_gate.shape[0]
            _require("shared_gate", self.shared_gate, (shared, width), hidden)
            _require("shared_up", self.shared_up, (shared, width), hidden)
            _require("shared_down", self.shared_down, (width, shared), hidden)
        if hidden.shape != (*self.token_ids.shape, width):
            raise ValueError(f"hidden is {tuple(hidden.shape)}, not [*token_ids.shape, {width}]")

    def kept_shapes(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Of the pre-activations of the shared branch, and of those of the experts; the latter by the lowering."""
        (experts, _, inner), tokens = self.expert_gate.shape, self.token_ids.numel()
        shared = (0, 0) if self.shared_gate is None else (tokens, self.shared_gate.shape[0])
        lowering = self.resolved()
        if lowering == "masked_dense":
            return shared, (experts, tokens, inner)
        if lowering == "by_pair":
            return shared, (tokens, 2 * inner)
        return shared, (tokens * sum(1 for factor in self.factors if factor), inner)


def _require(name: str, operand: Tensor | None, shape: tuple[int, ...], hidden: Tensor) -> None:
    if operand is None or operand.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {None if operand is None else tuple(operand.shape)}")
    if operand.dtype != hidden.dtype:
        raise TypeError(
            f"hidden is {hidden.dtype} and {name} {operand.dtype}; cast one (autocast casts floating dtypes, except float64)"
        )
