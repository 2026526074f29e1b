"""Reductions, scans and sorts: row-local exactly when the dimension worked along holds features only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..rows import Dim, Rows, broadcast, feature, varying
from .table import Call, Layouts, NotRowLocal, Operand, Overload, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("reduction")


def _overloads(*names: str) -> list[Overload]:
    """ATen overloads by dotted name."""
    return [getattr(getattr(aten, packet), overload) for packet, overload in (name.split(".") for name in names)]


def _reduced(operand: Operand, dims: Sequence[int], keep: bool) -> Rows:
    gone = {dim % operand.rank for dim in dims} if operand.rank else set()
    if keep:
        return tuple(() if index in gone else dim for index, dim in enumerate(operand.rows))
    return tuple(dim for index, dim in enumerate(operand.rows) if index not in gone)


def _each_output(call: Call, rows: Rows) -> Layouts:
    value = call.node.meta["val"]
    return [rows for _ in value] if isinstance(value, (list, tuple)) else rows


@TABLE.rule(
    *_overloads(
        "sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "aminmax.default", "logsumexp.default",
        "max.dim", "min.dim", "argmax.default", "argmin.default", "prod.dim_int", "prod.default", "sum.default",
        "mean.default", "max.default", "min.default", "any.default", "any.dim", "any.dims", "all.default", "all.dim",
        "all.dims", "var.correction", "var.dim", "var.default", "std.correction", "std.dim", "std.default",
        "var_mean.correction", "var_mean.dim", "var_mean.default", "std_mean.correction", "std_mean.dim",
        "std_mean.default", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype",
        "linalg_vector_norm.default", "linalg_norm.default", "nansum.default", "nanmean.default", "median.dim",
        "median.default", "nanmedian.dim", "mode.default", "kthvalue.default", "quantile.scalar",
        "count_nonzero.dim_IntList", "count_nonzero.default",
    )
)  # fmt: skip
def reduce(call: Call) -> Layouts:
    """Over `dim` (all dimensions where it is None, empty or absent); the result drops them, or keeps size one."""
    x = call.operand("self")
    dims = call.integers("dim") if "dim" in call.arguments else []
    dims = dims or list(range(x.rank))
    call.require_row_local(x, dims if x.rank else [], call.name)
    return _each_output(call, _reduced(x, dims, bool(call.arguments.get("keepdim", False))))


@TABLE.rule(aten.cosine_similarity.default)
def cosine_similarity(call: Call) -> Layouts:
    """Of two values broadcast together, along `dim`."""
    x = call.operand("x1")
    both = Operand(x.node, broadcast([x.rows, call.operand("x2").rows]), x.value)
    dim = int(call.argument("dim"))
    call.require_row_local(both, [dim], call.name)
    return _reduced(both, [dim], keep=False)


@TABLE.rule(
    *_overloads(
        "softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default", "_safe_softmax.default",
        "cumsum.default", "cumprod.default", "logcumsumexp.default", "cummax.default", "cummin.default",
        "sort.default", "argsort.default", "argsort.stable", "sort.stable", "flip.default", "roll.default",
    )
)  # fmt: skip
def along(call: Call) -> Layouts:
    """Works along `dim` and keeps the shape."""
    x = call.operand("self")
    dims = call.integers("dims" if "dims" in call.arguments else "dim")
    dims = dims or list(range(x.rank))
    call.require_row_local(x, dims if x.rank else [], call.name)
    worked = {dim % x.rank for dim in dims} if x.rank else set()
    return _each_output(call, tuple(varying(dim) if i in worked else dim for i, dim in enumerate(x.rows)))


@TABLE.rule(aten.tril.default, aten.triu.default)
def triangle(call: Call) -> Layouts:
    """Keeps or clears by the indices of the last two dimensions."""
    x = call.operand("self")
    call.require_row_local(x, [x.rank - 2, x.rank - 1], call.name)
    return x.rows[:-2] + (varying(x.rows[-2]), varying(x.rows[-1]))


def _resized(call: Call, x: Operand, dim: int, output: int | None = None) -> Rows:
    """`x`'s layout with dimension `dim` replaced by a feature of the traced size."""
    dim %= max(x.rank, 1)
    new: Dim = feature(call.sizes(output)[dim]) if x.rank else ()
    return tuple(new if index == dim else old for index, old in enumerate(x.rows))


@TABLE.rule(aten.topk.default)
def topk(call: Call) -> Layouts:
    x = call.operand("self")
    dim = int(call.argument("dim"))
    call.require_row_local(x, [dim] if x.rank else [], call.name)
    return [_resized(call, x, dim, 0), _resized(call, x, dim, 1)]


@TABLE.rule(aten.diff.default)
def diff(call: Call) -> Layouts:
    """x[i + 1] − x[i] along `dim`."""
    x = call.operand("self")
    if call.argument("prepend") is not None or call.argument("append") is not None:
        raise NotRowLocal(f"{call.name} with other values in front or behind")
    dim = int(call.argument("dim"))
    call.require_row_local(x, [dim], call.name)
    return _resized(call, x, dim)


@TABLE.rule(aten.glu.default)
def glu(call: Call) -> Layouts:
    """Halves `dim`: a ⊙ σ(b)."""
    x = call.operand("self")
    dim = int(call.argument("dim"))
    call.require_row_local(x, [dim], call.name)
    return _resized(call, x, dim)
