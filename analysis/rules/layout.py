"""Data movement: no arithmetic, only where elements lie. `MOVES` are the operations a fold leaves below its cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile

import sympy
import torch
from torch.fx import Node

from ..._torch import size_expression
from ..facts import LENGTH, POSITION
from ..rows import (
    Dim,
    Rows,
    broadcast,
    extent,
    feature,
    is_static,
    join_dims,
    one_row_each,
    quotient,
    regroup,
    row_local,
    show,
    uniform,
)
from .table import Call, Layouts, NotRowLocal, Operand, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("layout")


@TABLE.rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
    aten.reshape_as.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def view(call: Call) -> Layouts:
    """The same elements in the same order: the flat sequence of atoms is dealt out to the traced sizes."""
    return regroup(call.operand("self").rows, call.sizes())


@TABLE.rule(
    aten.contiguous.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.lift_fresh.default
)
def same(call: Call) -> Layouts:
    return call.operands()[0].rows


def _permuted(operand: Operand, order: Sequence[int]) -> Rows:
    return tuple(operand.rows[dim] for dim in order)


@TABLE.rule(aten.permute.default)
def permute(call: Call) -> Layouts:
    return _permuted(call.operand("self"), call.integers("dims"))


@TABLE.rule(aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
def transpose(call: Call) -> Layouts:
    x = call.operand("self")
    one, other = (int(value) for name, value in call.arguments.items() if name in ("dim0", "dim1", "axis0", "axis1"))
    order = list(range(x.rank))
    order[one], order[other] = order[other], order[one]
    return _permuted(x, order)


@TABLE.rule(aten.t.default, aten.numpy_T.default)
def t(call: Call) -> Layouts:
    x = call.operand("self")
    return _permuted(x, range(x.rank - 1, -1, -1))


@TABLE.rule(aten.mT.default)
def matrix_transpose(call: Call) -> Layouts:
    x = call.operand("self")
    return _permuted(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


@TABLE.rule(aten.movedim.int, aten.movedim.intlist)
def movedim(call: Call) -> Layouts:
    x = call.operand("self")
    source = [dim % x.rank for dim in call.integers("source")]
    target = [dim % x.rank for dim in call.integers("destination")]
    order = [dim for dim in range(x.rank) if dim not in source]
    for place, dim in sorted(zip(target, source, strict=True)):
        order.insert(place, dim)
    return _permuted(x, order)


@TABLE.rule(aten.expand.default, aten.broadcast_to.default, aten.expand_as.default)
def expand(call: Call) -> Layouts:
    """New extents along which the value does not vary."""
    x, sizes = call.operand("self"), call.sizes()
    padded: Rows = ((),) * (len(sizes) - x.rank) + x.rows
    return tuple(dim if extent(dim) == size else uniform(size) for dim, size in zip(padded, sizes, strict=True))


@TABLE.rule(aten.repeat.default, aten.tile.default)
def repeat(call: Call) -> Layouts:
    """Whole copies side by side: a broadcast in front of what the dimension holds."""
    x, sizes = call.operand("self"), call.sizes()
    padded: Rows = ((),) * (len(sizes) - x.rank) + x.rows
    return tuple(_copies(call, dim, size) for dim, size in zip(padded, sizes, strict=True))


def _copies(call: Call, dim: Dim, size: sympy.Expr) -> Dim:
    if extent(dim) == size:
        return dim
    count = quotient(size, extent(dim))
    if count is None:
        raise NotRowLocal(f"{call.name} makes {size} of {show((dim,))}, which is no number of copies for every size")
    return uniform(count) + dim


@TABLE.rule(aten.repeat_interleave.self_int)
def repeat_interleave(call: Call) -> Layouts:
    """Each element several times in place: along a token axis the axis keeps its order and gains a broadcast."""
    x = call.operand("self")
    repeats = call.argument("repeats")
    if call.argument("dim") is None or not isinstance(repeats, int):
        raise NotRowLocal(f"{call.name} without a fixed dim and count flattens the rows of different tokens")
    dim = int(call.argument("dim")) % x.rank
    return tuple(d + uniform(sympy.Integer(repeats)) if i == dim else d for i, d in enumerate(x.rows))


def _without(x: Operand, dim: int) -> Rows:
    return x.rows[:dim] + x.rows[dim + 1 :]


@TABLE.rule(aten.select.int)
def select(call: Call) -> Layouts:
    x = call.operand("self")
    dim = int(call.argument("dim")) % x.rank
    if not row_local(x.rows[dim]):
        raise NotRowLocal(f"select takes one index of {show((x.rows[dim],))}: the row of a fixed position", adds=POSITION)
    return _without(x, dim)


@TABLE.rule(aten.slice.Tensor, aten.narrow.default)
def slice_(call: Call) -> Layouts:
    """Of features; along a token axis only the whole of it, in order."""
    x = call.operand("self")
    dim = int(call.argument("dim")) % x.rank
    size = call.sizes()[dim]
    if extent(x.rows[dim]) == size:
        return x.rows
    if any(isinstance(argument, Node) for argument in list(call.arguments.values())[1:]):
        raise NotRowLocal(f"{call.name} cuts at a size of an input", adds=LENGTH)
    if not row_local(x.rows[dim]):
        raise NotRowLocal(
            f"slice keeps {size} of {show((x.rows[dim],))}: row t of the result may be the token of another position",
            adds=POSITION,
        )
    return x.rows[:dim] + (feature(size),) + x.rows[dim + 1 :]


@TABLE.rule(aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default, aten.tensor_split.sections)
def split(call: Call) -> Layouts:
    x = call.operand("self")
    dim = int(call.argument("dim")) % x.rank
    parts = call.node.meta["val"]
    if len(parts) == 1:
        return [x.rows]
    if not row_local(x.rows[dim]):
        raise NotRowLocal(f"{call.name} cuts {show((x.rows[dim],))} into ranges of positions", adds=POSITION)
    return [x.rows[:dim] + (feature(size_expression(part.shape[dim])),) + x.rows[dim + 1 :] for part in parts]


@TABLE.rule(aten.unbind.int)
def unbind(call: Call) -> Layouts:
    x = call.operand("self")
    dim = int(call.argument("dim")) % x.rank
    if not row_local(x.rows[dim]):
        raise NotRowLocal(f"unbind takes {show((x.rows[dim],))} apart by position", adds=POSITION)
    return [_without(x, dim) for _ in call.node.meta["val"]]


@TABLE.rule(aten.unfold.default)
def unfold(call: Call) -> Layouts:
    """Windows over features, as a new last dimension."""
    x, sizes = call.operand("self"), call.sizes()
    dim = int(call.argument("dimension")) % max(x.rank, 1)
    call.require_row_local(x, [dim] if x.rank else [], call.name)
    return (*x.rows[:dim], *map(feature, sizes[dim : dim + 1]), *x.rows[dim + 1 :], feature(sizes[-1]))[: len(sizes)]


@TABLE.rule(aten.rot90.default)
def rot90(call: Call) -> Layouts:
    """Turns a plane of features."""
    x, sizes = call.operand("self"), call.sizes()
    plane = [dim % x.rank for dim in call.integers("dims")]
    call.require_row_local(x, plane, call.name)
    return tuple(feature(sizes[place]) if place in plane else dim for place, dim in enumerate(x.rows))


@TABLE.rule(aten.slice_scatter.default, aten.select_scatter.default)
def written(call: Call) -> Layouts:
    """`self` with `src` in place of some features, or of everything; what writing in place becomes."""
    x, source = call.operand("self"), call.operand("src")
    dim = int(call.argument("dim")) % x.rank
    if source.rank < x.rank:
        source = Operand(source.node, source.rows[:dim] + ((),) + source.rows[dim:], source.value)
    elif extent(source.rows[dim]) == extent(x.rows[dim]):
        return broadcast([x.rows, source.rows])
    for each in (x, source):
        if not row_local(each.rows[dim]):
            raise NotRowLocal(f"{call.name} writes some positions of {show((each.rows[dim],))}", adds=POSITION)
    joint = [
        join_dims(a, b) if i != dim else feature(extent(a)) for i, (a, b) in enumerate(zip(x.rows, source.rows, strict=True))
    ]
    return one_row_each(tuple(joint))


_LEGACY_EMPTY: Rows = (feature(sympy.Integer(0)),)  # torch.cat skips tensors of shape [0]


@TABLE.rule(aten.cat.default, aten.concat.default)
def cat(call: Call) -> Layouts:
    """Along features, also those in front of the same token axis; the other dimensions line up without broadcasting."""
    parts = [part for part in call.operands() if part.rows != _LEGACY_EMPTY]
    dim = int(call.argument("dim")) % parts[0].rank
    joint = list(parts[0].rows)
    for part in parts:
        joint = [join_dims(one, other) if i != dim else () for i, (one, other) in enumerate(zip(joint, part.rows, strict=True))]
    joint[dim] = _one_behind_another(parts, dim)
    return one_row_each(tuple(joint))


def _one_behind_another(parts: Sequence[Operand], dim: int) -> Dim:
    """`[2·ids[1]]` and `[ids[1]]` are `[3·ids[1]]`: whole copies of an axis, numbered by a feature.

    Raises:
        NotRowLocal: a part does not hold a whole number of them.
        LayoutMismatch: other rows, or the same in another order, stand in one of them.
    """
    axes = next((part for part in parts if not row_local(part.rows[dim])), parts[0])
    behind = tuple(dropwhile(is_static, axes.rows[dim]))
    size, copies = extent(behind), sympy.Integer(0)
    for part in parts:
        count = quotient(extent(part.rows[dim]), size)
        if count is None or not count.is_Integer:
            raise NotRowLocal(f"cat along {show((axes.rows[dim],))} of {axes.node} shifts positions", adds=POSITION)
        copies += count
        behind = join_dims(behind, regroup((part.rows[dim],), (count, size))[1])
    return feature(copies) + behind


@TABLE.rule(aten.stack.default)
def stack(call: Call) -> Layouts:
    parts = call.operands()
    rows = broadcast([part.rows for part in parts])
    dim = int(call.argument("dim")) % (len(rows) + 1)
    return rows[:dim] + (feature(sympy.Integer(len(parts))),) + rows[dim:]


@TABLE.rule(aten.constant_pad_nd.default, aten.pad.default)
def pad(call: Call) -> Layouts:
    """Of features only: padding a token axis adds rows that belong to no token, or moves them (1 in front, -1 behind)."""
    x, sizes = call.operand("self"), call.sizes()
    amounts = list(call.argument("pad"))
    result: list[Dim] = []
    for place, (dim, size) in enumerate(zip(x.rows, sizes, strict=True)):
        behind = 2 * (x.rank - 1 - place)
        if all(amount == 0 for amount in amounts[behind : behind + 2]):
            result.append(dim)
        elif row_local(dim):
            result.append(feature(size))
        else:
            raise NotRowLocal(f"{call.name} pads {show((dim,))}, which moves positions", adds=POSITION)
    return tuple(result)


MOVES = frozenset(
    {*TABLE, aten.clone.default}
    - {aten.slice_scatter.default, aten.select_scatter.default, aten.unfold.default, aten.rot90.default}
    - {aten.cat.default, aten.concat.default, aten.stack.default, aten.constant_pad_nd.default, aten.pad.default}
    - {aten.repeat.default, aten.tile.default, aten.repeat_interleave.self_int}
)
"""Operations that only rearrange one operand (often as a view): a fold leaves them below its cut."""

SIZES_ONLY_SHAPE = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unflatten.int,
        aten.expand.default,
        aten.broadcast_to.default,
        aten.repeat.default,
        aten.tile.default,
        aten.slice.Tensor,
        aten.narrow.default,
    }
)
"""Operations whose symbolic arguments say only where elements lie; everywhere else a size is a number computed with."""
