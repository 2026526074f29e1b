"""Elementwise operations: element i of the result is a function of element i of each operand, after broadcasting.

An operand that varies along a token axis (a position table, a mask over time) makes the result depend on position; a
size of an input used as a number makes it depend on length.
"""

from __future__ import annotations

import torch

from ..facts import CONTEXT
from ..rows import broadcast
from .table import Call, Layouts, NotRowLocal, Overload, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("pointwise")

# Elementwise in meaning, though ATen does not tag them so; most are other names of operations that it does.
_UNTAGGED = (
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.masked_fill.Tensor,
    aten.where.Scalar,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
    aten.hardswish.default,
    aten.log_sigmoid.default,
    aten._prelu_kernel.default,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
    aten.isclose.default,
    aten.copy.default,
    aten.fill.Tensor,
    aten.rsub.Tensor,
    *(
        getattr(getattr(aten, name), form)
        for name in (
            "multiply",
            "subtract",
            "divide",
            "true_divide",
            "less",
            "less_equal",
            "greater",
            "greater_equal",
            "not_equal",
        )
        for form in ("Tensor", "Scalar")
    ),
    aten.divide.Tensor_mode,
    aten.divide.Scalar_mode,
    *(
        getattr(aten, name).default
        for name in ("negative", "absolute", "fix", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh")
    ),
)


def is_pointwise(overload: Overload) -> bool:
    """Whether ATen's tag (or the list above) declares a functional, deterministic elementwise operation."""
    if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return False
    return torch.Tag.pointwise in overload.tags or overload in _UNTAGGED


def pointwise(call: Call) -> Layouts:
    """Broadcast the operands; every output has the joint layout."""
    rows = broadcast([operand.rows for operand in call.operands()])
    value = call.node.meta["val"]
    return [rows for _ in value] if isinstance(value, (list, tuple)) else rows


FIRST_ONLY = frozenset({aten.type_as.default, aten.to.other})
"""Operations that read the values of their first operand alone."""


@TABLE.rule(*FIRST_ONLY)
def cast_like(call: Call) -> Layouts:
    """The dtype of another tensor, not its values or shape."""
    return call.operand("self").rows


@TABLE.rule(
    aten.dropout.default,
    aten.native_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_dropout.default,
    aten.feature_alpha_dropout.default,
    aten.rrelu.default,
)
def dropout(call: Call) -> Layouts:
    """The identity outside training; random in training."""
    if call.arguments.get("train", call.arguments.get("training")):
        raise NotRowLocal(f"{call.name} in training mode is random", adds=CONTEXT)
    return pointwise(call)
