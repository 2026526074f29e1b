"""Which values to tabulate: a program's token-only values as a cut problem, and the parts of its solution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torch.fx import Node

from ..analysis.aliases import analyze_aliases
from ..analysis.consumers import Consumers, StorageKey
from ..analysis.facts import Facts
from ..analysis.program import Program
from ..analysis.provenance import where
from ..analysis.rows import Uniform, is_static
from ..analysis.storage import Storage, measure_program, nbytes
from .cut import Candidate, Cut, cheapest_cut
from .latency import fastest_cut, row_bytes_of, work
from .sweep import freed_by, needed_without
from .tables.distinct import DistinctRows, largest_integer
from .tables.encode import smallest_integer
from .tables.region import STORED_READS, Region, ancestors, is_metadata_check, is_size, moved, unmoved

LARGEST_PRODUCT = 1 << 16
"""Rows a table over several token inputs may have."""


@dataclass(frozen=True)
class Choice:
    """The choice of tables for one program.

    Attributes:
        program: the program.
        facts: its dependence facts.
        consumers: who reads and holds its state.
        largest_product: rows a table over several token inputs may have.
        max_table_bytes: None to save bytes; a number to save work a token with tables of at most so many bytes.
    """

    program: Program
    facts: Facts
    consumers: Consumers
    largest_product: int = LARGEST_PRODUCT
    max_table_bytes: int | None = None

    @cached_property
    def values(self) -> list[Node]:
        """Token-only values, tuples included, in graph order."""
        return [node for node in self.facts if self.facts[node].token_only]

    @cached_property
    def demanded(self) -> list[Node]:
        """Token-only values that something else reads."""
        inside = set(self.values)
        return [node for node in self.values if any(user not in inside and not is_metadata_check(user) for user in node.users)]

    @cached_property
    def escaping(self) -> set[Node]:
        """Values whose memory may reach the caller through an output."""
        aliases = analyze_aliases(self.program)
        outputs = [node for node in self.program.graph.output_node().all_input_nodes if node in aliases.roots]
        return {node for node in self.values if aliases.may_reach(node, outputs)}

    @cached_property
    def cut(self) -> Cut:
        """The optimal cut under the objective, by node name."""
        if self.max_table_bytes is not None:
            reads = {node.name: row_bytes_of(node, self.facts) for node in self.values}
            works = {node.name: work(node, self.facts) for node in self.values}
            return fastest_cut(self.candidates, reads, works, self.max_table_bytes)
        weights = {storage: self._weight_bytes(storage) for storage in self.consumers.sizes}
        return cheapest_cut(self.candidates, weights)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The values as a cut problem in bytes."""
        return [self._candidate(node) for node in self.values]

    @cached_property
    def tables(self) -> list[Node]:
        """The values the optimal cut tabulates, but those that only shapes are taken from once the others are tables."""
        return self.read_among([node for node in self.values if node.name in self.cut.tables])

    def region(self, inputs: Iterable[str]) -> Region:
        """The region of some token inputs."""
        names = frozenset(inputs)
        if names not in self._regions:
            chosen = tuple(node for node in self.program.input_nodes() if node.name in names)
            self._regions[names] = Region(self.program, self.facts, chosen)
        return self._regions[names]

    @cached_property
    def _regions(self) -> dict[frozenset[str], Region]:
        return {}

    def region_of(self, node: Node) -> Region:
        """The region of the token inputs a value depends on."""
        return self.region(self.facts[node].tokens)

    def parts(self, values: Sequence[Node]) -> list[list[Node]]:
        """`values` in groups that share an ancestor or state: what is decided, applied and undone together."""
        groups: list[tuple[set[object], list[Node]]] = []
        for node in values:
            own = {each for each in ancestors([node]) if unmoved(each).op != "placeholder"}
            names = [str(each.target) for each in own if each.op == "get_attr"]
            reach: set[object] = {*own, *(self.consumers.storages[name] for name in names if name in self.consumers.storages)}
            members = [node]
            apart = []
            for other, others in groups:
                if reach & other:
                    reach, members = reach | other, others + members
                else:
                    apart.append((other, others))
            groups = [*apart, (reach, members)]
        return [members for _, members in groups]

    @cached_property
    def _ends(self) -> list[Node]:
        """What the demanded values rearrange, each once."""
        return list(dict.fromkeys(unmoved(node) for node in self.demanded))

    def frontier(self) -> list[Node]:
        """The computed values behind what is demanded: what a fold of everything would tabulate."""
        return [
            node
            for node in self._ends
            if self.facts[node].token_only and self.computes(node) and self._table_bytes(node) is not None
        ]

    def too_many(self) -> list[Node]:
        """Demanded values over several token inputs with more combinations than a table may have rows."""
        return [
            node for node in self._ends if len(self.facts[node].tokens) > 1 and self._combinations(node) > self.largest_product
        ]

    def _combinations(self, node: Node) -> int:
        return prod(self.program.tokens[name].rows for name in self.facts[node].tokens)

    def computes(self, node: Node) -> bool:
        """More than the ids, or rows read straight from stored state."""
        if node.op == "placeholder":
            return False
        tokens = [operand for operand in node.all_input_nodes if self.facts[operand].token_only]
        others = [operand for operand in node.all_input_nodes if operand not in tokens and not is_size(operand)]
        reads_ids = all(unmoved(operand).op == "placeholder" for operand in tokens)
        return not (node.target in STORED_READS and reads_ids and all(operand.op == "get_attr" for operand in others))

    def predict(self, tables: Sequence[Node], table_bytes: int) -> tuple[list[str], Storage, Storage]:
        """What tabulating `tables` frees: (state names, storage now, storage afterwards)."""
        before = measure_program(self.program)
        freed = [name for name in freed_by(self.program.graph, tables) if name not in self.consumers.pinned]
        state = self.program.module.state_dict()
        logical = sum(nbytes(state[name]) for name in freed if name in state)
        gone = {
            storage
            for storage in {self.consumers.storages[name] for name in freed}
            if set(self.consumers.names(storage)) <= set(freed) and not self.consumers.held(storage)
        }
        backing = sum(self.consumers.sizes[storage] for storage in gone)
        after = Storage(before.logical - logical + table_bytes, before.backing - backing + table_bytes)
        return freed, before, after

    def nearest(self, part: Sequence[Node]) -> list[Node]:
        """The cheapest tables that free the largest allocation `part` frees: what comes next to paying; [] if none is freed."""
        freed = {
            self.consumers.storages[name] for name in freed_by(self.program.graph, part) if name in self.consumers.storages
        }
        if not freed:
            return []
        largest = max(freed, key=lambda storage: (self.consumers.sizes[storage], str(storage)))
        weights = {storage: self._weight_bytes(storage) for storage in self.consumers.sizes}
        weights[largest] = 1 + sum(weights.values()) + self.table_bytes(part)
        cut = cheapest_cut(self.candidates, weights)
        return self.read_among([node for node in self.values if node.name in cut.tables])

    def read_among(self, chosen: Sequence[Node]) -> list[Node]:
        """`chosen` but those of which nothing, or only shapes, is read once the others are tables."""
        needed = needed_without(self.program.graph, chosen)
        return [node for node in chosen if any(user in needed for user in node.users)]

    def stays(self, tables: Sequence[Node]) -> list[str]:
        """Who keeps the state that `tables` are computed from but do not free, one sentence each."""
        freed = set(freed_by(self.program.graph, tables))
        inside = ancestors(tables)
        read = {str(node.target) for node in inside if node.op == "get_attr"}
        sentences = []
        for name in sorted(read):
            outside = [node for node in self.consumers.readers.get(name, ()) if node not in inside]
            holders = list(self.consumers.held(self.consumers.storages[name])) if name in self.consumers.storages else []
            twins = [
                twin
                for twin in self.consumers.names(self.consumers.storages[name])
                if twin not in read and self.consumers.readers[twin]
            ]
            why = [f"{node.name} ({where(node)}) reads it" for node in outside[:2]] + holders
            why += [f"{twin} is the same memory" for twin in twins]
            if why and (name not in freed or holders or twins):
                sentences.append(f"{name} stays: {'; '.join(why)}")
        return sentences

    def table_bytes(self, nodes: Iterable[Node]) -> int:
        """Bytes of plain tables of `nodes`."""
        return sum(self._table_bytes(node) or 0 for node in nodes)

    def _candidate(self, node: Node) -> Candidate:
        given = node.op == "placeholder"
        operands = tuple(operand.name for operand in node.all_input_nodes if self.facts[operand].token_only)
        return Candidate(
            node.name,
            None if given else self._table_bytes(node),
            operands,
            () if given else tuple(dict.fromkeys(self._weights(node))),
            node in self._demanded,
            moved(node) is not None or self.facts[node].rows is None,
            given,
        )

    @cached_property
    def _demanded(self) -> frozenset[Node]:
        return frozenset(self.demanded)

    def _table_bytes(self, node: Node) -> int | None:
        """Bytes of a value's table as `encode` would store it, at most.

        None for tuples, broadcasts along a symbolic length, values without elements, and products of too many rows.
        """
        fact = self.facts[node]
        if fact.rows is None or any(isinstance(a, Uniform) and not is_static(a) for dim in fact.rows for a in dim):
            return None
        rows = self._combinations(node)
        if len(fact.tokens) > 1 and rows > self.largest_product:
            return None
        row_bytes = self.region_of(node).width(node) * self.item_bytes(node)
        if row_bytes == 0:
            return None
        distinct = self._distinct.rows(node)
        if distinct == 1:
            return row_bytes
        remapped = distinct * row_bytes + rows * smallest_integer(0, distinct).itemsize
        return min(rows * row_bytes, remapped)

    @cached_property
    def _distinct(self) -> DistinctRows:
        return DistinctRows(self.program, self.facts)

    def item_bytes(self, node: Node) -> int:
        """Bytes an element takes in a table; indices and stored integers take no more than their range needs."""
        traced = node.meta["val"]
        if (largest := largest_integer(node, self.program)) is None:
            return int(traced.element_size())
        return smallest_integer(*largest, at_most=traced.dtype).itemsize

    def _weights(self, node: Node) -> Iterable[StorageKey]:
        """The allocations of the state that computing `node` from its token-only operands reads."""
        constants = [o for o in node.all_input_nodes if not self.facts[o].token_only and not is_size(o)]
        for each in ancestors(constants):
            if each.op == "get_attr" and str(each.target) in self.consumers.storages:
                yield self.consumers.storages[str(each.target)]

    def _weight_bytes(self, storage: StorageKey) -> int:
        """What keeping an allocation costs: nothing where someone else needs it in any case."""
        inside = self._inside
        readers = {node for name in self.consumers.names(storage) for node in self.consumers.readers[name]}
        free = self.consumers.held(storage) or any(node not in inside for node in readers)
        return 0 if free else self.consumers.sizes[storage]

    @cached_property
    def _inside(self) -> set[Node]:
        """Token-only values, and constants that only they read."""
        inside: set[Node] = set(self.values)
        for node in reversed(list(self.facts)):
            checks = [user for user in node.users if not is_metadata_check(user)]
            if self.facts[node].constant and checks and all(user in inside for user in checks):
                inside.add(node)
        return inside
