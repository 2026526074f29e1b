"""The rule table and what a rule sees of a call.

A rule is a function from a `Call` to the layout of the result (`Rows`), or one layout for each output. It may assume
that every tensor operand is constant or token-only with a known layout, and answers only for this one operation.
Where the operation would look beyond one token's row it raises `NotRowLocal` with a sentence for the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..._torch import schema_arguments, size_expression
from ..facts import CONTEXT, Fact, Source
from ..rows import LayoutMismatch, Rows, row_local, show

Layouts = Rows | Sequence[Rows]
Overload = Any


class NotRowLocal(Exception):
    """The operation reads more than one token's row; `adds` says what else its result depends on."""

    def __init__(self, text: str, adds: Source = CONTEXT) -> None:
        super().__init__(text)
        self.adds = adds


@dataclass(frozen=True)
class Operand:
    """A tensor argument: its node, layout and traced value (None node for a Python number)."""

    node: Node | None
    rows: Rows
    value: Any

    @property
    def rank(self) -> int:
        return len(self.rows)


SCALAR = Operand(None, (), None)


class Call:
    """One ATen call as its rule sees it."""

    def __init__(self, node: Node, facts: Mapping[Node, Fact]) -> None:
        self.node = node
        self.arguments = schema_arguments(node)
        self._facts = facts

    @property
    def name(self) -> str:
        return str(self.node.target)

    def argument(self, name: str) -> Any:
        """The argument as written in the graph: a node, a number, a list."""
        return self.arguments[name]

    def operand(self, name: str) -> Operand:
        """The tensor (or number) passed for a schema argument."""
        return self.as_operand(self.arguments[name])

    def optional(self, name: str) -> Operand | None:
        return None if self.arguments[name] is None else self.operand(name)

    def as_operand(self, argument: Any) -> Operand:
        if not isinstance(argument, Node):
            return SCALAR
        rows = self._facts[argument].rows
        return Operand(argument, rows if rows is not None else (), argument.meta["val"])

    def operands(self) -> list[Operand]:
        """Every tensor operand, those inside lists included, in schema order."""
        found: list[Operand] = []
        for argument in self.arguments.values():
            for item in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(item, Node) and isinstance(item.meta.get("val"), torch.Tensor):
                    found.append(self.as_operand(item))
        return found

    def integers(self, name: str) -> list[int]:
        """A dimension list argument; a single number counts as a list of one."""
        value = self.arguments[name]
        if value is None:
            return []
        return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]

    def sizes(self, output: int | None = None) -> list[sympy.Expr]:
        """The traced sizes of the result (of one of them)."""
        value = self.node.meta["val"]
        tensor = value if output is None else value[output]
        return [size_expression(size) for size in tensor.shape]

    def require_row_local(self, operand: Operand, dims: Sequence[int], what: str) -> None:
        """Refuse unless every given dimension of `operand` holds features only.

        Raises:
            NotRowLocal: one of them holds a token axis or a symbolic extent.
        """
        for dim in dims:
            if not row_local(operand.rows[dim]):
                raise NotRowLocal(
                    f"{what} over dimension {dim} of {operand.node}, which is {show((operand.rows[dim],))}: "
                    "it would mix the rows of different tokens"
                )


Rule = Callable[[Call], Layouts]


class RuleTable:
    """ATen overload → rule. Each family of operations fills one table; `merge` joins them and refuses duplicates."""

    def __init__(self, family: str) -> None:
        self.family = family
        self._rules: dict[Overload, Rule] = {}

    def rule(self, *overloads: Overload) -> Callable[[Rule], Rule]:
        """Register the decorated function for these overloads.

        Raises:
            ValueError: an overload has a rule already.
        """

        def register(function: Rule) -> Rule:
            for overload in overloads:
                if overload in self._rules:
                    raise ValueError(f"{overload} has two rules in family {self.family}")
                self._rules[overload] = function
            return function

        return register

    def get(self, overload: Overload) -> Rule | None:
        return self._rules.get(overload)

    def __iter__(self) -> Iterator[Overload]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    @classmethod
    def merge(cls, *tables: RuleTable) -> RuleTable:
        merged = cls("all")
        for table in tables:
            for overload in table:
                merged.rule(overload)(table._rules[overload])
        return merged


__all__ = ["Call", "LayoutMismatch", "Layouts", "NotRowLocal", "Operand", "Overload", "Rule", "RuleTable"]
