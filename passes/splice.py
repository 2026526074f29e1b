"""Replaces values of a region by lookups in a working copy, and clears what nobody reads any more."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

import torch
from torch.fx import GraphModule, Node

from .._torch import is_mutable, is_overload, size_expression
from ..analysis.rows import Atom, TokenAxis
from ..runtime.lookup import LOOKUP
from .builder import Builder
from .region import Region, RegionError, is_metadata_check

aten = torch.ops.aten


def splice_lookup(copy: GraphModule, region: Region, value: Node, table: str, bounds: str, pass_name: str) -> None:
    """Replace `value` (a node of the region's program) in `copy` by a lookup in new state `table`.

    The table is declared, not filled: [V, width], the value's dtype and device, columns in the order of the value's
    features.

    Raises:
        RegionError: the value's memory layout cannot be reproduced.
    """
    nodes = {node.name: node for node in copy.graph.nodes}
    old, ids = nodes[value.name], nodes[region.ids.name]
    build = Builder(copy, old, pass_name)
    rows = build.declare(table, (region.domain, region.width(value)), old.meta["val"])
    if ids.meta["val"].dtype not in (torch.int64, torch.int32):
        ids = build.call(aten._to_copy.default, ids, dtype=torch.int64)
    new = build.call(LOOKUP, rows, ids, bounds)
    if not region.is_trailing(value):
        new = _lay_out(build, region, value, ids, new)
    elif len(region.rows(value)) == len(region.rows(region.ids)):
        new = build.call(aten.squeeze.dim, new, -1)
    new = _with_strides(build, new, old)
    old.replace_all_uses_with(new)


def _lay_out(build: Builder, region: Region, value: Node, ids: Node, looked_up: Node) -> Node:
    """[*ids.shape, width] → the value's own dimensions: view its atoms apart, permute them, view them together."""
    atoms: list[Atom] = [atom for dim in region.rows(value) for atom in dim]
    sizes = [_size(build, region, ids, atom) for atom in atoms]
    features = [place for place, atom in enumerate(atoms) if not isinstance(atom, TokenAxis)]
    apart = [*region.token_order(atoms), *features]
    new = build.call(aten.view.default, looked_up, [sizes[place] for place in apart])
    if apart != sorted(apart):
        new = build.call(aten.permute.default, new, [apart.index(place) for place in range(len(atoms))])
    shape: list[int | Node] = []
    place = 0
    for dim_atoms in region.rows(value):
        factors = [sizes[place + i] for i in range(len(dim_atoms))]
        place += len(dim_atoms)
        shape.append(reduce(lambda a, b: _product(build, a, b), factors, 1))
    return build.call(aten.reshape.default, new, shape)


def _size(build: Builder, region: Region, ids: Node, atom: Atom) -> int | Node:
    """The extent of an atom as a number, or as the size of the ids it is."""
    if atom.size.is_Integer:
        return int(atom.size)
    if not isinstance(atom, TokenAxis):
        raise RegionError(f"{region.ids.name}: a value is broadcast along the symbolic length {atom.size}")
    if atom.size != atom.whole:
        raise RegionError(f"{region.ids.name}: a view splits a token axis of symbolic length {atom.whole}")
    return build.call(aten.sym_size.int, ids, next(dim for name, dim in atom.axes if name == region.ids.name))


def _product(build: Builder, one: int | Node, other: int | Node) -> int | Node:
    if isinstance(one, int) and isinstance(other, int):
        return one * other
    return other if one == 1 else build.number(operator.mul, one, other)


def _with_strides(build: Builder, new: Node, old: Node) -> Node:
    """`new` in the memory layout that the program's readers of `old` were traced with."""
    if _strides(new) == _strides(old):
        return new
    new = build.call(aten.clone.default, new, memory_format=torch.contiguous_format)
    if _strides(new) != _strides(old):
        raise RegionError(f"{old.name} has strides {old.meta['val'].stride()}, which a lookup does not reproduce")
    return new


def _strides(node: Node) -> list[str]:
    """Strides along dimensions of more than one element."""
    value = node.meta["val"]
    pairs = zip(map(size_expression, value.shape), map(size_expression, value.stride()), strict=True)
    return [str(stride.expand()) for size, stride in pairs if size != 1]


def sweep(copy: GraphModule, region: Region, replaced: Sequence[Node]) -> list[str]:
    """Erase the computation that no value needs any more, and the state that only it read.

    Only nodes that were ancestors of `replaced` can go: state that nobody read before the fold stays. Checks of a
    value's dtype or device go with the value.

    Returns:
        The names of the state removed.
    """
    nodes = {node.name: node for node in copy.graph.nodes}
    candidates = _closure(nodes, replaced)
    removed: list[str] = []
    for node in reversed(list(copy.graph.nodes)):
        if node not in candidates or not _is_pure(node):
            continue
        if all(is_metadata_check(user) for user in node.users):
            for check in list(node.users):
                copy.graph.erase_node(check)
            copy.graph.erase_node(node)
            if node.op == "get_attr":
                removed.append(str(node.target))
    for name in removed:
        if not any(node.op == "get_attr" and node.target == name for node in copy.graph.nodes):
            _delete_state(copy, name)
    return removed


def _closure(nodes: dict[str, Node], replaced: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    stack = [nodes[node.name] for node in replaced]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def _is_pure(node: Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    return not is_mutable(node.target) if is_overload(node.target) else True


def _delete_state(module: GraphModule, name: str) -> None:
    """Delete a tensor, and the submodules it leaves empty."""
    path, _, leaf = name.rpartition(".")
    delattr(module.get_submodule(path), leaf)
    while path:
        holder = module.get_submodule(path)
        if any(True for _ in holder.parameters()) or any(True for _ in holder.buffers()) or len(list(holder.children())):
            return
        module.delete_submodule(path)
        path = path.rpartition(".")[0]
