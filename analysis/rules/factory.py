"""New tensors: they depend on sizes at most, never on the values of an operand whose shape they borrow."""

from __future__ import annotations

import torch
from torch.fx import Node

from ..facts import CONTEXT, LENGTH, POSITION
from ..rows import feature, uniform
from .table import Call, Layouts, NotRowLocal, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("factory")


@TABLE.rule(
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.scalar_tensor.default,
    aten.zero.default,
    aten.fill.Scalar,
)
def filled(call: Call) -> Layouts:
    """One number everywhere."""
    for name in ("fill_value", "s", "value"):
        if isinstance(call.arguments.get(name), Node):
            raise NotRowLocal(f"{call.name} is filled with {call.argument(name)}, a size of an input", adds=LENGTH)
    return tuple(uniform(size) for size in call.sizes())


@TABLE.rule(
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.linspace.default,
    aten.eye.default,
    aten.eye.m,
    aten.tril_indices.default,
    aten.triu_indices.default,
)
def counted(call: Call) -> Layouts:
    """Numbers by index: constant for static sizes, a position where a size is symbolic."""
    if any(isinstance(argument, Node) for argument in call.arguments.values()):
        raise NotRowLocal(f"{call.name} counts positions along an input of symbolic length", adds=POSITION)
    return tuple(feature(size) for size in call.sizes())


@TABLE.rule(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def uninitialised(call: Call) -> Layouts:
    raise NotRowLocal(f"{call.name} is uninitialised memory", adds=CONTEXT)
