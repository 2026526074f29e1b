"""Convolutions and pooling: row-local along a token axis only with kernel 1, stride 1 and no padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..facts import window
from ..rows import Dim, Rows, feature, row_local, show
from .table import Call, Layouts, NotRowLocal, Operand, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("conv")


def _spread(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)


def _slide(call: Call, x: Operand, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[Dim, ...]:
    """The spatial dimensions after a sliding window.

    Raises:
        NotRowLocal: the window covers more than one row of a token axis.
    """
    dims = len(kernel)
    sizes = call.sizes() if isinstance(call.node.meta["val"], torch.Tensor) else call.sizes(0)
    result = []
    for place, (dim, size) in enumerate(zip(x.rows[-dims:], sizes[-dims:], strict=True)):
        if row_local(dim):
            result.append(feature(size))
        elif kernel[place] == 1 and _spread(stride, dims)[place] == 1 and _spread(padding, dims)[place] == 0:
            result.append(dim)
        else:
            raise NotRowLocal(
                f"{call.name} with kernel {kernel[place]} slides over {show((dim,))}: "
                f"each result sees a window of {kernel[place]} ids",
                adds=window(kernel[place]),
            )
    return tuple(result)


@TABLE.rule(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
)
def convolution(call: Call) -> Layouts:
    """Channels are contracted, so they hold features only; dimension 0 (where there is one) stays."""
    x, weight = call.operand("input"), call.operand("weight")
    call.require_row_local(weight, range(weight.rank), f"{call.name} uses a kernel")
    if (bias := call.optional("bias")) is not None:
        call.require_row_local(bias, [0], f"{call.name} adds a bias")
    kernel = [int(size) for size in weight.value.shape[2:]]
    channel = x.rank - len(kernel) - 1
    call.require_row_local(x, [channel], f"{call.name} sums channels")
    padding = call.argument("padding")
    if isinstance(padding, str):
        padding = [0] if padding == "valid" else [k - 1 for k in kernel]
    spatial = _slide(call, x, kernel, call.integers("stride"), padding)
    return x.rows[:channel] + (feature(call.sizes()[channel]),) + spatial


@TABLE.rule(aten.max_pool1d.default, aten.max_pool2d.default, aten.avg_pool1d.default, aten.avg_pool2d.default)
def pool(call: Call) -> Layouts:
    x = call.operand("self")
    dims = 1 if "pool1d" in call.name else 2
    kernel = _spread(call.integers("kernel_size"), dims)
    spatial: Rows = _slide(call, x, kernel, call.integers("stride") or kernel, call.integers("padding"))
    return x.rows[:-dims] + spatial


@TABLE.rule(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.adaptive_avg_pool1d.default)
def resample(call: Call) -> Layouts:
    """The spatial dimensions in another size."""
    x, sizes = call.operands()[0], call.sizes()
    spatial = x.rank - (2 if "2d" in call.name else 1)
    call.require_row_local(x, range(spatial, x.rank), call.name)
    return (*x.rows[:spatial], *map(feature, sizes[spatial:]))
