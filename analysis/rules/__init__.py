"""Dependence rules, one file a family of operations.

`RULES` answers for operations on constant and token-only values. `FACTORIES` answers for new tensors, whatever the
operands whose shape they borrow. Every elementwise operation shares `pointwise`.
"""

from __future__ import annotations

from . import conv, factory, gather, layout, linear, mixing, norm, pointwise, reduction
from .layout import MOVES, SIZES_ONLY_SHAPE
from .pointwise import FIRST_ONLY, is_pointwise
from .table import Call, NotRowLocal, Overload, Rule, RuleTable

RULES = RuleTable.merge(
    conv.TABLE, gather.TABLE, layout.TABLE, linear.TABLE, mixing.TABLE, norm.TABLE, pointwise.TABLE, reduction.TABLE
)
FACTORIES = factory.TABLE


def rule_for(overload: Overload) -> Rule | None:
    """The rule of an ATen overload, or None where foldfx has none."""
    return RULES.get(overload) or (pointwise.pointwise if is_pointwise(overload) else None)


__all__ = [
    "FACTORIES",
    "FIRST_ONLY",
    "MOVES",
    "RULES",
    "SIZES_ONLY_SHAPE",
    "Call",
    "NotRowLocal",
    "Overload",
    "RuleTable",
    "rule_for",
]
