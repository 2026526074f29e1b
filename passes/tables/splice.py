"""Replaces values of a region by lookups in a working copy."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..._torch import size_expression
from ...analysis.rows import Atom, TokenAxis
from ...errors import PassError
from ...runtime.lookup import LOOKUP
from ..builder import Builder, provide
from .class_index import emit_classes
from .encode import Encoded, Pack, Part, smallest_integer
from .region import Region, RegionError
from .replace import replace_value
from .row_classes import RowClasses

aten = torch.ops.aten


def splice(
    copy: GraphModule,
    region: Region,
    encoded: Encoded,
    bounds: str,
    pass_name: str,
    prefix: str,
    classes: RowClasses | None = None,
) -> None:
    """Replace every value of `encoded` in `copy` by a lookup, and register the stored tensors.

    Args:
        copy: a working copy of the region's program.
        region: the region, in the program before.
        encoded: packs of the region's values, all with the same index layout.
        bounds: what ids outside the domain do, see `runtime.BOUNDS`.
        pass_name: recorded as the new nodes' origin.
        prefix: names of new index state begin with it.
        classes: which class each row is of, where the packs hold several.

    Raises:
        PassError: a table does not have a row for each element of the domain.
        RegionError: a value's dimensions or memory layout cannot be reproduced.
    """
    for pack in encoded.packs:
        if pack.rows != region.domain:
            raise PassError(f"table {pack.state} has {pack.rows} rows for a domain of {region.domain}")
    for name, tensor in encoded.state.items():
        provide(copy, name, tensor)
    nodes = {node.name: node for node in copy.graph.nodes}
    order = {node: place for place, node in enumerate(copy.graph.nodes)}
    values = [part.value for pack in encoded.packs for part in pack.parts]
    first = min((nodes[value.name] for value in values), key=order.__getitem__)
    index = _Index(Builder(copy, first, pass_name), region, nodes, bounds, prefix).emit(values[0])
    chosen = None
    if classes is not None and (several := [pack.state for pack in encoded.packs if pack.classes > 1]):
        chosen = emit_classes(Builder(copy, first, pass_name), index, classes, several[0])
    for pack in encoded.packs:
        head = min((nodes[part.value.name] for part in pack.parts), key=order.__getitem__)
        rows = _look_up(Builder(copy, head, pass_name), pack, index, bounds, chosen)
        for part, columns in zip(pack.parts, _columns(Builder(copy, head, pass_name), pack, rows), strict=True):
            old = nodes[part.value.name]
            new = _as_value(Builder(copy, old, pass_name), region, part, nodes, columns)
            if part.escapes and len(pack.parts) > 1:
                new = Builder(copy, old, pass_name).call(aten.clone.default, new)
            replace_value(Builder(copy, old, pass_name), old, new)


@dataclass(frozen=True)
class _Index:
    """Emits the row numbers of a region's tables."""

    build: Builder
    region: Region
    nodes: dict[str, Node]
    bounds: str
    prefix: str

    def emit(self, value: Node) -> Node:
        """The ids themselves where an id is its own row; else the sum of each input's share."""
        domains = self.region.domains
        if len(domains) == 1 and domains[0].is_prefix:
            ids = self.nodes[self.region.inputs[0].name]
            return ids if ids.meta["val"].dtype in (torch.int64, torch.int32) else self._to_int64(ids)
        shares = []
        radix = 1
        for node, domain in reversed(list(zip(self.region.inputs, domains, strict=True))):
            shares.append(self._share(node, radix, value))
            radix *= domain.rows
        return reduce(lambda one, other: self.build.call(aten.add.Tensor, one, other), reversed(shares))

    def _share(self, node: Node, radix: int, value: Node) -> Node:
        """radix · (row of the id), from a table, so that an id outside the domain raises as it did before.

        Unreachable ids get a row beyond the end.
        """
        domain = self.region.program.tokens[node.name]
        total = self.region.domain
        dtype = smallest_integer(0, total)
        table = torch.full((domain.size, 1), total, dtype=dtype)
        table[domain.ids(), 0] = (torch.arange(domain.rows) * radix).to(dtype)
        name = f"{self.prefix}.{node.name}_row_{radix}"
        rows = self.build.state(name, table.to(node.meta["val"].device))
        ids = self.nodes[node.name]
        ids = ids if ids.meta["val"].dtype in (torch.int64, torch.int32) else self._to_int64(ids)
        bounds = "embedding" if self.bounds == "index" else self.bounds
        share = self._to_int64(self.build.call(aten.squeeze.dim, self.build.call(LOOKUP, rows, ids, bounds), -1))
        if len(self.region.inputs) == 1:
            return share
        return self._spread(share, node, value)

    def _spread(self, share: Node, node: Node, value: Node) -> Node:
        """One input's share laid along the joint axes of all inputs, size one where it does not vary."""
        own = dict(self._places(node, value))
        if len(own) == len(self.region.index_rows(value)) == node.meta["val"].dim():
            return share
        sizes: list[int | Node] = [1] * len(self.region.index_rows(value))
        for dim, place in own.items():
            sizes[place] = _extent(self.build, node.meta["val"].shape[dim], self.nodes[node.name], dim)
        return self.build.call(aten.view.default, share, sizes)

    def _places(self, node: Node, value: Node) -> list[tuple[int, int]]:
        """(dimension of the input, joint axis) in order.

        Raises:
            RegionError: the joint axes run through the input's dimensions in another order.
        """
        found = []
        for place, (atom,) in enumerate(self.region.index_rows(value)):
            assert isinstance(atom, TokenAxis)
            found += [(dim, place) for name, dim in atom.axes if name == node.name]
        if found != sorted(found):
            raise RegionError(f"{self.region.name}: the inputs' common axes are in different orders")
        return found

    def _to_int64(self, node: Node) -> Node:
        return (
            node if node.meta["val"].dtype == torch.int64 else self.build.call(aten._to_copy.default, node, dtype=torch.int64)
        )


def _look_up(build: Builder, pack: Pack, index: Node, bounds: str, classes: Node | None) -> Node:
    """[*index shape, width] rows of a pack."""
    stored = build.read(pack.state)
    if pack.constant:
        rows = build.call(LOOKUP, build.call(aten.expand.default, stored, [pack.rows, pack.width]), index, bounds)
    elif pack.remap is not None:
        numbers = build.call(LOOKUP, build.read(pack.remap), index, bounds)
        if pack.classes > 1:
            numbers = build.call(aten.gather.default, numbers, -1, build.call(aten.unsqueeze.default, classes, -1))
        number = build.call(aten.squeeze.dim, numbers, -1)
        rows = build.call(LOOKUP, stored, build.call(aten._to_copy.default, number, dtype=torch.int64), "embedding")
    else:
        rows = build.call(LOOKUP, stored, index, bounds)
    return rows if pack.columns is None else build.call(aten.index_select.default, rows, -1, build.read(pack.columns))


def _columns(build: Builder, pack: Pack, rows: Node) -> list[Node]:
    """The columns of each part, as views of the rows where there are several."""
    starts = sorted({(part.start, part.width) for part in pack.parts})
    if len(starts) == 1:
        return [rows] * len(pack.parts)
    pieces = build.call(aten.split_with_sizes.default, rows, [width for _, width in starts], -1)
    part_nodes = {start: build.item(pieces, place) for place, (start, _) in enumerate(starts)}
    return [part_nodes[part.start] for part in pack.parts]


def _as_value(build: Builder, region: Region, part: Part, nodes: dict[str, Node], columns: Node) -> Node:
    """The columns of one part in the dtype and dimensions of the value they stand for."""
    new = columns
    if new.meta["val"].dtype != part.dtype:
        new = build.call(aten._to_copy.default, new, dtype=part.dtype)
    if not region.is_trailing(part.value):
        new = _lay_out(build, region, part.value, nodes, new)
    elif len(region.rows(part.value)) == len(region.index_rows(part.value)):
        new = build.call(aten.squeeze.dim, new, -1)
    return new


def _lay_out(build: Builder, region: Region, value: Node, nodes: dict[str, Node], columns: Node) -> Node:
    """[*index shape, width] → the value's own dimensions: view its atoms apart, permute them, view them together."""
    atoms: list[Atom] = [atom for dim in region.rows(value) for atom in dim]
    sizes = [_size(build, region, nodes, atom) for atom in atoms]
    features = [place for place, atom in enumerate(atoms) if not isinstance(atom, TokenAxis)]
    apart = [*region.token_order(atoms), *features]
    new = build.call(aten.reshape.default, columns, [sizes[place] for place in apart])
    if apart != sorted(apart):
        new = build.call(aten.permute.default, new, [apart.index(place) for place in range(len(atoms))])
    shape: list[int | Node] = []
    left = iter(sizes)
    for dim in region.rows(value):
        size: int | Node = 1
        for _ in dim:
            size = _product(build, size, next(left))
        shape.append(size)
    return build.call(aten.reshape.default, new, shape)


def _size(build: Builder, region: Region, nodes: dict[str, Node], atom: Atom) -> int | Node:
    """The extent of an atom as a number, or as the size of the ids it is."""
    if atom.size.is_Integer:
        return int(atom.size)
    if not isinstance(atom, TokenAxis):
        raise RegionError(f"{region.name}: a value is broadcast along the symbolic length {atom.size}")
    if atom.size != atom.whole:
        raise RegionError(f"{region.name}: a view splits a token axis of symbolic length {atom.whole}")
    name, dim = min(atom.axes)
    return build.call(aten.sym_size.int, nodes[name], dim)


def _extent(build: Builder, size: Any, ids: Node, dim: int) -> int | Node:
    expression = size_expression(size)
    return int(expression) if expression.is_Integer else build.call(aten.sym_size.int, ids, dim)


def _product(build: Builder, one: int | Node, other: int | Node) -> int | Node:
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    return other if one == 1 else build.number(operator.mul, one, other)
