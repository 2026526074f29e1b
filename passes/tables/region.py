"""The token-only values of a program: how their rows lie, how wide they are, what they are made of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import sympy
import torch
from torch.fx import Node

from ...analysis.facts import Facts
from ...analysis.program import Domain, Program
from ...analysis.rows import Atom, Rows, TokenAxis, is_static
from ...analysis.rules import FIRST_ONLY, MOVES, RULES, Call
from ...analysis.tokens import TableLookup, table_lookups
from ...runtime.lookup import LOOKUP

aten = torch.ops.aten

_SPLITS = (aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)

STORED_READS = (aten.embedding.default, aten.index_select.default, aten.index.Tensor, LOOKUP)
"""Operations that, on stored state and the ids alone, are a table read already."""


@RULES.rule(LOOKUP)
def lookup(call: Call) -> Rows:
    """foldfx::lookup is row-local like the embedding it generalises."""
    return call.operand("ids").rows + call.operand("table").rows[1:]


class RegionError(Exception):
    """The region cannot be run or tabulated; the text says why. A pass turns it into a refusal."""


def moved(node: Node) -> Node | None:
    """The operand of which `node` is a mere rearrangement, or None where it computes."""
    source = None
    if node.target is operator.getitem:
        parent = node.args[0]
        if isinstance(parent, Node) and parent.target in _SPLITS:
            source = parent.args[0]
    elif node.target in MOVES:
        source = node.args[0]
    return source if isinstance(source, Node) else None


def unmoved(node: Node) -> Node:
    """The value that `node` rearranges, through any number of moves; `node` itself where it computes."""
    while (source := moved(node)) is not None:
        node = source
    return node


def is_metadata_check(node: Node) -> bool:
    """A check of dtype, device or layout: the traced metadata proves it, so it keeps no value alive."""
    return node.target is aten._assert_tensor_metadata.default


def is_size(node: Node) -> bool:
    """A number or symbol rather than a tensor (or tuple of tensors)."""
    return not isinstance(node.meta.get("val"), torch.Tensor | list | tuple)


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """`nodes` and every value they are computed from; sizes are not followed."""
    return closure(nodes, lambda node: [operand for operand in value_operands(node) if not is_size(operand)])


def closure(nodes: Iterable[Node], operands: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """`nodes` and everything reached from them through `operands`."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(operands(node))
    return found


def value_operands(node: Node) -> list[Node]:
    """The operands whose values, and not only whose dtype, an operation reads."""
    return node.all_input_nodes[:1] if node.target in FIRST_ONLY else node.all_input_nodes


@dataclass(frozen=True)
class Region:
    """The values of a program that depend on certain token inputs alone, one or several together.

    Attributes:
        program: the captured program.
        facts: its dependence facts.
        inputs: the placeholders of the token inputs, in graph order. A table over several has a row for each
            combination of ids, the last input counting fastest.
    """

    program: Program
    facts: Facts
    inputs: tuple[Node, ...]

    @property
    def name(self) -> str:
        """The inputs by name, for messages."""
        return " × ".join(node.name for node in self.inputs)

    @property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(self.program.tokens[node.name] for node in self.inputs)

    @property
    def domain(self) -> int:
        """The number of table rows: (combinations of) reachable ids."""
        return prod(domain.rows for domain in self.domains)

    def contains(self, node: Node) -> bool:
        """Whether the value depends on these token inputs and nothing else; constants are not part of it."""
        fact = self.facts.get(node)
        return fact is not None and fact.token_only and set(fact.tokens) <= {each.name for each in self.inputs}

    def rows(self, node: Node) -> Rows:
        """The layout of one of its values."""
        rows = self.facts[node].rows
        assert rows is not None, node
        return rows

    def width(self, node: Node) -> int:
        """How many elements a value holds for one row."""
        return int(sympy.Mul(*(atom.size for dim in self.rows(node) for atom in dim if is_static(atom))))

    def row_bytes(self, node: Node) -> int:
        """Bytes a value holds for one row."""
        return self.width(node) * int(node.meta["val"].element_size())

    def index_rows(self, value: Node) -> Rows:
        """The layout of the row indices that look `value` up: that of the ids, or the inputs' joint axes in order."""
        if len(self.inputs) == 1:
            return self.rows(self.inputs[0])
        atoms = [atom for dim in self.rows(value) for atom in dim]
        ordered = [atoms[place] for place in self.token_order(atoms)]
        if any(isinstance(atom, TokenAxis) and atom.size != atom.whole for atom in ordered):
            raise RegionError(f"{value.name} splits an axis that several token inputs share")
        return tuple((atom,) for atom in ordered)

    def token_order(self, atoms: Sequence[Atom]) -> list[int]:
        """The places of the token axes among `atoms`, in the order of the inputs' own dimensions, outer digits first.

        Raises:
            RegionError: an axis of symbolic length is split.
        """
        names = [node.name for node in self.inputs]
        found = []
        for place, atom in enumerate(atoms):
            if isinstance(atom, TokenAxis):
                if not atom.stride.is_Integer:
                    raise RegionError(f"a view splits a token axis of {self.name} of symbolic length {atom.whole}")
                found.append((min((names.index(name), dim) for name, dim in atom.axes), -int(atom.stride), place))
        return [place for _, _, place in sorted(found)]

    def is_trailing(self, node: Node) -> bool:
        """Laid out [*index shape, width] or [*index shape]: what a lookup yields as it stands."""
        rows, index = self.rows(node), self.index_rows(node)
        return rows[: len(index)] == index and len(rows) - len(index) in (0, 1)

    def bounds(self, nodes: Iterable[Node]) -> str:
        """What ids outside the domain do in the values `nodes`, in the terms of `runtime.BOUNDS`.

        Lookups by the ids themselves decide; what is looked up by a value computed from them is reached by no such id.

        Raises:
            RegionError: the lookups they are made of raise exceptions of different classes.
        """
        inside = ancestors(nodes)
        lookups = [each for each in table_lookups(self.program.graph) if each.node in inside and self.contains(each.index)]
        lookups = [each for each in lookups if unmoved(each.index) in self.inputs] or lookups
        kinds = {each.bounds for each in lookups}
        if "gather" in kinds and kinds != {"gather"}:
            names = ", ".join(each.node.name for each in lookups)
            raise RegionError(f"the lookups {names} raise different exceptions for ids outside the domain")
        if kinds == {"index"} and not (all(map(self._wraps_alike, lookups)) and self._only_looked_up(inside, lookups)):
            return "embedding"
        return kinds.pop() if len(kinds) == 1 else "embedding"

    def _wraps_alike(self, lookup: TableLookup) -> bool:
        """Negative ids count from the end of the domain, in this lookup as in a table over the domain."""
        return len(self.inputs) == 1 and lookup.rows == self.domain and unmoved(lookup.index) is self.inputs[0]

    def _only_looked_up(self, inside: Iterable[Node], lookups: Iterable[TableLookup]) -> bool:
        """Nothing computes with the ids themselves: a negative one means the same row, but is another number."""
        allowed = {each.node for each in lookups}
        computing = [node for node in inside if node not in allowed and moved(node) is None]
        return not any(unmoved(operand) in self.inputs for node in computing for operand in value_operands(node))
