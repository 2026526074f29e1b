"""How many different rows a table can have, known before it is built."""

from __future__ import annotations

import operator
from math import prod
from operator import attrgetter

import torch
from torch.fx import Node

from ...analysis.facts import Facts
from ...analysis.program import Program
from ..verification.bits import bits_of
from .encode import unique_rows
from .region import STORED_READS, is_size, unmoved, value_operands

aten = torch.ops.aten

_INDICES = (aten.argmax.default, aten.argmin.default, aten.argsort.default, aten.argsort.stable)
_INDEX_PARTS = (aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim)


class DistinctRows:
    """Classes of ids that every lookup of a value reads equal rows for, so that its rows are equal as well."""

    def __init__(self, program: Program, facts: Facts) -> None:
        self._program = program
        self._classes: dict[Node, tuple[torch.Tensor, int]] = {}
        for node, fact in facts.items():
            if fact.token_only:
                self._classes[node] = self._of(node, facts)

    def rows(self, node: Node) -> int:
        """An upper bound on the number of different rows of a token-only value."""
        return self._classes[node][1]

    def _of(self, node: Node, facts: Facts) -> tuple[torch.Tensor, int]:
        """(the class of every row of the domain, the number of classes)."""
        if node.op == "placeholder":
            rows = self._program.tokens[node.name].rows
            return torch.arange(rows), rows
        operands = [operand for operand in value_operands(node) if operand in self._classes]
        if len(facts[node].tokens) > 1:
            rows = prod(self._program.tokens[name].rows for name in facts[node].tokens)
            return torch.arange(0), rows
        if node.target in STORED_READS and all(unmoved(operand).op == "placeholder" for operand in operands):
            return self._of_table(node, unmoved(operands[0]))
        first, *others = [self._classes[operand] for operand in operands]
        for other in others:
            first = first if other[0] is first[0] else _joint(first[0], other[0])
        return first

    def _of_table(self, node: Node, ids: Node) -> tuple[torch.Tensor, int]:
        domain = self._program.tokens[ids.name]
        stored = [operand for operand in node.all_input_nodes if operand.op == "get_attr"]
        leading = _reads_leading_dimension(node)
        if len(stored) != 1 or len(node.all_input_nodes) != 2 or not leading or any(map(is_size, node.all_input_nodes)):
            return torch.arange(domain.rows), domain.rows
        table = attrgetter(str(stored[0].target))(self._program.module).detach()
        read = table[domain.ids().to(table.device)].reshape(domain.rows, -1)
        distinct, classes = unique_rows(bits_of(read))
        return classes, distinct.numel()


def _reads_leading_dimension(node: Node) -> bool:
    """Whether ids select along dimension 0 of what they read."""
    if node.target is aten.index.Tensor:
        indices = list(node.args[1])  # type: ignore[arg-type]
        return indices[0] is not None and all(each is None for each in indices[1:])
    return node.target is not aten.index_select.default or bool(node.args[1] == 0)


def _joint(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Classes that agree in both."""
    distinct, classes = torch.unique(one * (int(other.max()) + 1) + other, return_inverse=True)
    return classes, distinct.numel()


def largest_integer(node: Node, program: Program) -> tuple[int, int] | None:
    """(least, most) a value of integers can hold, where its operation says so without running it."""
    if node.target in _INDICES:
        return 0, _elements(node)
    if node.target is operator.getitem and node.args[1] == 1:
        parent = node.args[0]
        assert isinstance(parent, Node)
        return (0, _elements(parent)) if parent.target in _INDEX_PARTS else None
    if node.target in STORED_READS and not node.meta["val"].is_floating_point():
        stored = [operand for operand in node.all_input_nodes if operand.op == "get_attr"]
        if len(stored) == 1 and stored[0].meta["val"].dtype != torch.bool:
            table = attrgetter(str(stored[0].target))(program.module)
            return int(table.min()), int(table.max())
    return None


def _elements(node: Node) -> int:
    """The static sizes of the operand, multiplied: no index along them is larger."""
    operand = node.all_input_nodes[0].meta["val"]
    result = 1
    for size in operand.shape:
        result *= size if isinstance(size, int) else 1
    return result
