"""How tables are stored: packed side by side, equal ones once, constant ones as one row, equal rows and columns once.

A `Pack` is one stored tensor and the values read from it. Encoding loses nothing: decoding gives back every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch import nn
from torch.fx import Node

from ..verification.bits import bits_of, same_bits

SAMPLED = 16
"""Columns looked at first to see that all rows differ."""

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Part:
    """Where one value's row lies in a looked-up row of its pack.

    Attributes:
        value: the node it stands for, in the program before the rewrite.
        start, width: its columns.
        dtype: the value's dtype; the pack may store integers in fewer bytes.
        escapes: its memory may reach the caller, so nothing else may stand on it.
    """

    value: Node
    start: int
    width: int
    dtype: torch.dtype
    escapes: bool = False


@dataclass(frozen=True)
class Pack:
    """One stored table.

    Attributes:
        state: name of the stored tensor, [stored rows, stored columns].
        rows: rows of the domain it answers for.
        width: columns of a looked-up row.
        parts: the values read from it.
        constant: every row is the same and one is stored.
        remap: name of a [rows, classes] integer table of stored row numbers, where equal rows are stored once or there
            are several classes.
        columns: name of a [width] table of stored column numbers, where equal columns are stored once.
        classes: execution classes with rows of their own.
    """

    state: str
    rows: int
    width: int
    parts: tuple[Part, ...]
    constant: bool = False
    remap: str | None = None
    columns: str | None = None
    classes: int = 1

    def decode(self, module: nn.Module, rows: torch.Tensor, classes: torch.Tensor | None = None) -> dict[Node, torch.Tensor]:
        """The stored rows of each value for 1-D row numbers and their classes, as the program will look them up."""
        stored = attrgetter(self.state)(module)
        rows = rows.to(stored.device)
        if self.constant:
            found = stored.expand(self.rows, -1)[rows]
        elif self.remap is not None:
            column = classes if classes is not None and self.classes > 1 else torch.zeros_like(rows)
            found = stored.index_select(0, attrgetter(self.remap)(module)[rows, column.to(rows.device)].long())
        elif _is_range(rows):
            found = stored[int(rows[0]) : int(rows[-1]) + 1]
        else:
            found = stored.index_select(0, rows)
        if self.columns is not None:
            found = found[:, attrgetter(self.columns)(module).long()]
        return {part.value: found[:, part.start : part.start + part.width].to(part.dtype) for part in self.parts}


def _is_range(rows: torch.Tensor) -> bool:
    """Ascending without a gap, so that a slice holds them."""
    return rows.numel() > 0 and bool((rows.diff() == 1).all())


@dataclass
class Encoded:
    """Packs, and the tensors they name."""

    packs: list[Pack] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state.values())


def encode(
    tables: Mapping[Node, torch.Tensor],
    prefix: str,
    alone: Sequence[Node] = (),
    others: Sequence[Mapping[Node, torch.Tensor]] = (),
) -> Encoded:
    """Store the tables of one region, which are all looked up by the same row index.

    Args:
        tables: [rows, width] each.
        prefix: names of the stored tensors begin with it.
        alone: values that must not share a pack, because their memory escapes to the caller.
        others: the tables of execution classes 1, 2, …; a value for which they all are equal to class 0 has one table.
    """
    result = Encoded()
    by_class = [node for node in tables if not all(same_bits(tables[node], other[node]) for other in others)]
    for own in _by_dtype(by_class, tables, alone):
        _pack_classes(result, own, [tables, *others], prefix, alone)
    tables = {node: table for node, table in tables.items() if node not in by_class}
    groups: dict[object, list[tuple[list[Node], torch.Tensor]]] = {}
    for nodes, table in _distinct(tables):
        narrow = _narrowed(table)
        separate = nodes[0] if _is_constant(narrow) or any(node in alone for node in nodes) else None
        groups.setdefault((narrow.dtype, separate), []).append((nodes, narrow))
    for members in groups.values():
        _pack(result, members, tables, prefix, alone)
    return result


def _by_dtype(nodes: Sequence[Node], tables: Mapping[Node, torch.Tensor], alone: Sequence[Node]) -> list[list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node if node in alone else tables[node].dtype, []).append(node)
    return list(groups.values())


def _pack_classes(
    result: Encoded,
    nodes: Sequence[Node],
    classes: Sequence[Mapping[Node, torch.Tensor]],
    prefix: str,
    alone: Sequence[Node],
) -> None:
    """The rows of all classes in one table, equal ones once, behind a number for each row and class."""
    stacked = torch.cat([_side_by_side([tables[node] for node in nodes]) for tables in classes])
    distinct, inverse = unique_rows(bits_of(stacked))
    numbers = inverse.to(smallest_integer(0, distinct.numel())).reshape(len(classes), -1).t().contiguous()
    parts: list[Part] = []
    start = 0
    for node in nodes:
        width, dtype = classes[0][node].shape[1], classes[0][node].dtype
        parts.append(Part(node, start, width, dtype, node in alone))
        start += width
    name = f"{prefix}.{'_'.join(node.name for node in nodes)}"
    result.state[name], result.state[remap := f"{name}_rows"] = stacked[distinct], numbers
    result.packs.append(Pack(name, numbers.shape[0], start, tuple(parts), remap=remap, classes=len(classes)))


def _distinct(tables: Mapping[Node, torch.Tensor]) -> list[tuple[list[Node], torch.Tensor]]:
    """Byte-identical tables once, with every value they serve."""
    found: list[tuple[list[Node], torch.Tensor]] = []
    for node, table in tables.items():
        twin = next((nodes for nodes, other in found if same_bits(table, other)), None)
        if twin is None:
            found.append(([node], table))
        else:
            twin.append(node)
    return found


def _pack(
    result: Encoded,
    members: Sequence[tuple[list[Node], torch.Tensor]],
    tables: Mapping[Node, torch.Tensor],
    prefix: str,
    alone: Sequence[Node],
) -> None:
    parts: list[Part] = []
    start = 0
    for nodes, table in members:
        width = table.shape[1]
        parts += [Part(node, start, width, tables[node].dtype, node in alone) for node in nodes]
        start += width
    packed = _side_by_side([table for _, table in members])
    name = f"{prefix}.{'_'.join(nodes[0].name for nodes, _ in members)}"
    rows, width = packed.shape
    if _is_constant(packed):
        result.state[name] = packed[:1].clone()
        result.packs.append(Pack(name, rows, width, tuple(parts), constant=True))
        return
    columns = remap = None
    if (fewer := _fewer_columns(packed)) is not None:
        packed, result.state[columns := f"{name}_columns"] = fewer
    if (shorter := _fewer_rows(packed)) is not None:
        packed, result.state[remap := f"{name}_rows"] = shorter
    result.state[name] = packed.contiguous()
    result.packs.append(Pack(name, rows, width, tuple(parts), remap=remap, columns=columns))


def _side_by_side(tables: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tables as one; where they are all the columns of one allocation, that."""
    base = tables[0]._base
    if base is not None and base.dim() == 2 and base.shape[1] == sum(table.shape[1] for table in tables):
        starts = [table.storage_offset() - base.storage_offset() for table in tables]
        widths = [table.shape[1] for table in tables]
        if starts == [sum(widths[:place]) for place in range(len(tables))] and all(table._base is base for table in tables):
            return base
    return torch.cat(list(tables), dim=1) if len(tables) > 1 else tables[0]


def _is_constant(table: torch.Tensor) -> bool:
    if table.shape[0] < 2 or not same_bits(table[:1], table[-1:]):
        return False
    bits = bits_of(table)
    return bool((bits == bits[:1]).all())


def _narrowed(table: torch.Tensor) -> torch.Tensor:
    """Integers in the smallest dtype that holds every entry."""
    if table.dtype not in _INTEGERS or not table.numel():
        return table
    return table.to(smallest_integer(int(table.min()), int(table.max()), at_most=table.dtype))


def smallest_integer(least: int, most: int, at_most: torch.dtype = torch.int64) -> torch.dtype:
    """The integer dtype with the fewest bytes that holds least … most, none wider than `at_most`."""
    for dtype in _INTEGERS:
        limits = torch.iinfo(dtype)
        if dtype.itemsize <= at_most.itemsize and limits.min <= least and most <= limits.max:
            return dtype
    return at_most


def _fewer_rows(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(distinct rows, [rows, 1] numbers of them) where that is smaller."""
    distinct, inverse = unique_rows(bits_of(table))
    numbers = inverse.to(smallest_integer(0, distinct.numel())).reshape(-1, 1)
    stored = distinct.numel() * table.shape[1] * table.element_size() + numbers.numel() * numbers.element_size()
    return (table[distinct], numbers) if stored < table.numel() * table.element_size() else None


def _fewer_columns(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(distinct columns, [width] numbers of them, int64) where that is smaller."""
    distinct, inverse = unique_rows(bits_of(table).t())
    stored = distinct.numel() * table.shape[0] * table.element_size() + inverse.numel() * inverse.element_size()
    return (table[:, distinct], inverse) if stored < table.numel() * table.element_size() else None


def unique_rows(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the first occurrence of each distinct row, ascending, and for each row the place of its twin there.

    Rows that differ in a few sampled columns differ. Otherwise rows are told apart by a 64-bit random linear hash; twins
    are confirmed bit by bit, and rows whose hashes collide count as distinct from all others.
    """
    everyone = torch.arange(bits.shape[0])
    few = torch.unique(torch.linspace(0, bits.shape[1] - 1, min(SAMPLED, bits.shape[1])).long())
    if few.numel() < bits.shape[1] and unique_rows(bits[:, few])[0].numel() == bits.shape[0]:
        return everyone, everyone
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) | 1
    step = max((16 << 20) // max(bits.shape[1] * 8, 1), 1)
    blocks = list(everyone.split(step))  # type: ignore[no-untyped-call]
    hashes = torch.cat([(bits[block].long() * factors).sum(1) for block in blocks])
    _, groups = torch.unique(hashes, return_inverse=True)
    first = torch.full((int(groups.max()) + 1,), bits.shape[0])
    twins = first.scatter_reduce(0, groups, everyone, "amin")[groups]
    differs = torch.cat([(bits[twins[block]] != bits[block]).any(1) for block in blocks])
    twins = torch.where(differs, everyone, twins)
    distinct, inverse = torch.unique(twins, return_inverse=True)
    return distinct, inverse
