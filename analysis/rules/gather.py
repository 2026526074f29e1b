"""Indexing: a constant table read at token-only indices is token-only; indexing *into* a token axis is not."""

from __future__ import annotations

import torch

from ..facts import POSITION
from ..rows import Dim, broadcast, extent, feature, join_dims, one_row_each, row_local, show, varying
from .table import Call, Layouts, NotRowLocal, Operand, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("gather")


@TABLE.rule(aten.embedding.default)
def embedding(call: Call) -> Layouts:
    """weight[indices]: a row for each index."""
    weight, indices = call.operand("weight"), call.operand("indices")
    call.require_row_local(weight, [0], "embedding looks up")
    return one_row_each(indices.rows + weight.rows[1:])


@TABLE.rule(aten.embedding_bag.padding_idx, aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(call: Call) -> Layouts:
    raise NotRowLocal(f"{call.name} sums the rows of several tokens")


@TABLE.rule(aten.index.Tensor)
def index(call: Call) -> Layouts:
    """x[i, j, ..]: the index tensors broadcast together and replace the dimensions they index."""
    x = call.operand("self")
    written = list(call.argument("indices")) + [None] * (x.rank - len(call.argument("indices")))
    indices = {dim: call.as_operand(item) for dim, item in enumerate(written) if item is not None}
    if any(item.value.dtype in (torch.bool, torch.uint8) for item in indices.values()):
        raise NotRowLocal("indexing with a mask: the number of rows depends on the data")
    call.require_row_local(x, list(indices), "indexing")
    looked_up = broadcast([item.rows for item in indices.values()])
    first, last = min(indices), max(indices)
    kept: list[Dim] = [dim for place, dim in enumerate(x.rows) if place not in indices]
    place = first if last - first + 1 == len(indices) else 0
    return one_row_each((*kept[:place], *looked_up, *kept[place:]))


@TABLE.rule(aten.index_select.default)
def index_select(call: Call) -> Layouts:
    x, looked_up = call.operand("self"), call.operand("index")
    dim = int(call.argument("dim")) % x.rank
    call.require_row_local(x, [dim], "index_select")
    return one_row_each(x.rows[:dim] + (looked_up.rows or ((),)) + x.rows[dim + 1 :])


@TABLE.rule(aten.gather.default)
def gather(call: Call) -> Layouts:
    """out[i][j] = x[index[i][j]][j] for dim 0, and so on: the other dimensions are read at the same place."""
    x, looked_up = call.operand("self"), call.operand("index")
    dim = int(call.argument("dim")) % x.rank
    call.require_row_local(x, [dim], "gather")
    return one_row_each(
        tuple(mine if place == dim else _same_place(x, place, mine) for place, mine in enumerate(looked_up.rows))
    )


def _same_place(x: Operand, place: int, index_dim: Dim) -> Dim:
    """A dimension that index and value share; the index may be shorter along features only."""
    own = x.rows[place]
    if extent(own) == extent(index_dim):
        return join_dims(own, index_dim)
    if row_local(own) and row_local(index_dim):
        return feature(extent(index_dim))
    raise NotRowLocal(f"gather reads dimension {place} of {x.node} at fixed positions of a token axis")


@TABLE.rule(aten.scatter.value)
def scatter(call: Call) -> Layouts:
    """A number at places of its own in each row: out[index[i][j]][j] for dim 0, and so on."""
    x, places = call.operand("self"), call.operand("index")
    dim = int(call.argument("dim")) % max(x.rank, 1)
    for operand in (x, places):
        call.require_row_local(operand, [dim] if operand.rank else [], call.name)
    rows = list(x.rows)
    for place, (own, theirs) in enumerate(zip(x.rows, places.rows, strict=True)):
        if place != dim and extent(own) == extent(theirs):
            rows[place] = join_dims(own, theirs)
        elif row_local(own) and row_local(theirs):
            rows[place] = varying(own)
        else:
            raise NotRowLocal(f"{call.name} writes some positions of {show((own,))}", adds=POSITION)
    return one_row_each(tuple(rows))


@TABLE.rule(aten.index_fill.int_Scalar)
def index_fill(call: Call) -> Layouts:
    """A number in place of some features."""
    x, places = call.operand("self"), call.operand("index")
    dim = int(call.argument("dim")) % max(x.rank, 1)
    call.require_row_local(x, [dim] if x.rank else [], call.name)
    call.require_row_local(places, range(places.rank), f"{call.name} reads places")
    return tuple(varying(own) if place == dim else own for place, own in enumerate(x.rows))


@TABLE.rule(aten.one_hot.default)
def one_hot(call: Call) -> Layouts:
    return call.operand("self").rows + (feature(call.sizes()[-1]),)


@TABLE.rule(aten.index_add.default)
def index_add(call: Call) -> Layouts:
    """`source` added to some features."""
    x, source, places = call.operand("self"), call.operand("source"), call.operand("index")
    dim = int(call.argument("dim")) % max(x.rank, 1)
    for operand in (x, source):
        call.require_row_local(operand, [dim] if operand.rank else [], call.name)
    call.require_row_local(places, range(places.rank), f"{call.name} reads places")
    return one_row_each(
        tuple(
            varying(a) if place == dim else join_dims(a, b)
            for place, (a, b) in enumerate(zip(x.rows, source.rows, strict=True))
        )
    )


@TABLE.rule(aten.bucketize.Tensor, aten.searchsorted.Tensor)
def bucketize(call: Call) -> Layouts:
    """The interval of each element among constant boundaries, the same for all."""
    boundaries = call.operand("boundaries" if "boundaries" in call.arguments else "sorted_sequence")
    if boundaries.rank != 1 or call.arguments.get("sorter") is not None:
        raise NotRowLocal(f"{call.name} among boundaries of their own for each row, or out of order")
    call.require_row_local(boundaries, [0], call.name)
    return call.operand("self").rows


@TABLE.rule(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar)
def isin(call: Call) -> Layouts:
    """Whether each element is among constants, the same for all."""
    if "test_elements" in call.arguments:
        constants = call.operand("test_elements")
        call.require_row_local(constants, range(constants.rank), f"{call.name} reads what it looks among")
    return call.operand("elements").rows
