"""Normalisations: row-local exactly when every normalised dimension holds features only."""

from __future__ import annotations

import torch

from ..rows import Rows, broadcast, feature
from .table import Call, Layouts, NotRowLocal, Operand, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("norm")


def _per_channel(call: Call, x: Operand, names: tuple[str, ...]) -> Rows:
    """Join `x` with parameters of shape [C], which vary along dimension 1."""
    layouts = [x.rows]
    for name in names:
        if (parameter := call.optional(name)) is not None:
            layouts.append(parameter.rows + ((),) * (x.rank - 2))
    return broadcast(layouts)


@TABLE.rule(aten.layer_norm.default, aten.native_layer_norm.default, aten.rms_norm.default, aten._fused_rms_norm.default)
def layer_norm(call: Call) -> Layouts:
    """Over the last len(normalized_shape) dimensions; native forms also return their statistics."""
    x = call.operand("input")
    outer = x.rank - len(call.integers("normalized_shape"))
    call.require_row_local(x, range(outer, x.rank), call.name)
    parameters = [call.operand(name).rows for name in ("weight", "bias") if call.arguments.get(name) is not None]
    rows = broadcast([x.rows, *parameters])
    value = call.node.meta["val"]
    if isinstance(value, torch.Tensor):
        return rows
    return [rows] + [x.rows[:outer] + ((),) * (x.rank - outer)] * (len(value) - 1)


@TABLE.rule(aten.group_norm.default)
def group_norm(call: Call) -> Layouts:
    """Statistics over the channels of a group and everything behind them, for each index of dimension 0."""
    x = call.operand("input")
    call.require_row_local(x, range(1, x.rank), call.name)
    return _per_channel(call, x, ("weight", "bias"))


@TABLE.rule(aten.instance_norm.default)
def instance_norm(call: Call) -> Layouts:
    """Statistics over everything behind the channels, for each index of dimensions 0 and 1, or those it was given."""
    x = call.operand("input")
    if not call.argument("use_input_stats"):
        return _per_channel(call, x, ("weight", "bias", "running_mean", "running_var"))
    if call.argument("running_mean") is not None:
        raise NotRowLocal(f"{call.name} in training mode writes its running statistics")
    call.require_row_local(x, range(2, x.rank), call.name)
    return _per_channel(call, x, ("weight", "bias"))


@TABLE.rule(aten.batch_norm.default)
def batch_norm(call: Call) -> Layouts:
    """With running statistics it is an affine map per channel; with batch statistics it mixes every row."""
    if call.argument("training"):
        raise NotRowLocal(f"{call.name} in training mode takes its statistics over the whole batch")
    return _per_channel(call, call.operand("input"), ("weight", "bias", "running_mean", "running_var"))


@TABLE.rule(aten.prelu.default)
def prelu(call: Call) -> Layouts:
    """One slope, or one a channel (dimension 1)."""
    x, weight = call.operand("self"), call.operand("weight")
    return broadcast([x.rows, weight.rows + ((),) * max(x.rank - 2, 0)])


@TABLE.rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(call: Call) -> Layouts:
    x = call.operand("input")
    rows = _per_channel(call, x, ("weight", "bias", "running_mean", "running_var"))
    return [rows] + [tuple(map(feature, call.sizes(output))) for output in (1, 2)]


@TABLE.rule(
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm.default,
)
def batch_statistics(call: Call) -> Layouts:
    raise NotRowLocal(f"{call.name} takes its statistics over more than one row")
