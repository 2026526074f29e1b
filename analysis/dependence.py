"""Dependence: for every value of a program, what it depends on and how token axes lie in it.

An abstract interpretation over the graph, in order. A value is constant, token-only (with a layout, see `rows`), or
depends on position, length, a window of ids, or context, of which nothing is known. What no rule proves is context:
unknown is never success.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from .._torch import is_mutable, is_overload, is_random, size_expression, static_size
from .facts import CONTEXT, LENGTH, POSITION, Because, Fact, Facts, Source, token
from .program import Program
from .rows import LayoutMismatch, Rows, axis, extent, feature, one_row_each, show, token_axes
from .rules import FACTORIES, FIRST_ONLY, SIZES_ONLY_SHAPE, Call, NotRowLocal, Overload, rule_for
from .rules.table import Rule

_NOTHING: frozenset[Source] = frozenset()


def analyze_program(program: Program) -> Facts:
    """The facts of every node of `program`, in graph order; changes nothing."""
    return Facts(_Interpreter(program).run())


class _Interpreter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.facts: dict[Node, Fact] = {}
        self.axes: dict[str, set[tuple[str, int]]] = {}

    def run(self) -> dict[Node, Fact]:
        for node in self.program.graph.nodes:
            self.facts[node] = getattr(self, f"_{node.op}")(node)
        return self.facts

    def _placeholder(self, node: Node) -> Fact:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return Fact(_NOTHING, (), Because("input", f"a number, specialised to {value!r} at capture"))
        domain = self.program.tokens.get(node.name)
        if domain is None:
            return _lost("input", f"input {node.target} is not a token input", (), {CONTEXT})
        if node.name in self.program.effects.mutated_inputs:
            return _lost("input", f"token input {node.target} is written by the program", (), {CONTEXT})
        rows = tuple(axis(node.name, place, size_expression(size)) for place, size in enumerate(value.shape))
        self.axes[node.name] = set(token_axes(rows))
        return Fact(frozenset({token(node.name)}), rows, Because("input", f"token ids, domain {domain}"))

    def _get_attr(self, node: Node) -> Fact:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return _lost("state", f"{node.target} is not a tensor", (), {CONTEXT})
        if str(node.target) in self.program.effects.mutated_buffers:
            return _lost("state", f"buffer {node.target} is written by the program", (), {CONTEXT})
        return Fact(_NOTHING, _static_rows(value), Because("state", f"constant {list(value.shape)}"))

    def _call_module(self, node: Node) -> Fact:
        return _lost("effect", "an input check, no value", (), {CONTEXT})

    def _output(self, node: Node) -> Fact:
        return _lost("output", "the program's outputs", tuple(node.all_input_nodes), {CONTEXT})

    def _call_function(self, node: Node) -> Fact:
        operands = tuple(node.all_input_nodes)
        if "val" not in node.meta:
            return _lost("effect", "a check, no value", (), {CONTEXT})
        if node.target is operator.getitem:
            return self._element(node)
        if isinstance(node.meta.get("val"), int | float) or _is_symbolic(node.meta.get("val")):
            return self._number(node, operands)
        if not is_overload(node.target):
            return self._refused(node, operands, f"no rule for {node.target}")
        if is_mutable(node.target):
            return self._refused(node, operands, f"{node.target} writes to an argument")
        if (factory := FACTORIES.get(node.target)) is not None:
            return self._apply(factory, node, (), _NOTHING)
        return self._computed(node, operands)

    def _computed(self, node: Node, operands: tuple[Node, ...]) -> Fact:
        if node.target in FIRST_ONLY:
            operands = operands[:1]
        sources = self._union(operands)
        tensors = tuple(o for o in operands if isinstance(o.meta.get("val"), torch.Tensor))
        rule = rule_for(node.target)
        if rule is None and is_random(node.target):
            return self._refused(node, operands, f"{node.target} is random: never folded")
        if not all(self.facts[operand].known for operand in tensors):
            lost = next(operand for operand in tensors if not self.facts[operand].known)
            text = f"{node.target} reads {lost.name}, which depends on {self.facts[lost].describe()}"
            return _lost("operands", text, (lost,), sources)
        if rule is not None:
            symbol = next((o for o in operands if _is_symbolic(o.meta.get("val"))), None)
            if symbol is not None and node.target not in SIZES_ONLY_SHAPE:
                return self._refused(node, operands, f"{node.target} computes with {symbol.name}, a size of an input", LENGTH)
            return self._apply(rule, node, tensors, self._union(tensors))
        if tensors and not sources and all(_is_static(value) for value in _tensors(node)):
            values = [_static_rows(value) for value in _tensors(node)]
            return self._proved(node, values, tensors, sources, Because("constant", f"{node.target} of constants", tensors))
        return self._refused(node, operands, f"no rule for {node.target}")

    def _apply(self, rule: Rule, node: Node, parents: tuple[Node, ...], sources: frozenset[Source]) -> Fact:
        try:
            result = rule(Call(node, self.facts))
            values = result if isinstance(node.meta["val"], (list, tuple)) else [result]
            because = Because(rule.__name__, f"{node.target} sees one row at a time (rule {rule.__name__})", parents)
            return self._proved(node, list(values), parents, sources, because)  # type: ignore[arg-type]
        except NotRowLocal as refusal:
            return self._refused(node, parents, str(refusal), refusal.adds)
        except LayoutMismatch as mismatch:
            adds = POSITION if mismatch.position else CONTEXT
            return self._refused(node, parents, f"{node.target}: {mismatch}", adds)
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as defect:
            return self._refused(node, parents, f"the rule for {node.target} failed ({defect!r}); please report this")

    def _proved(
        self, node: Node, values: list[Rows], parents: tuple[Node, ...], sources: frozenset[Source], because: Because
    ) -> Fact:
        """The fact a rule claims, once the traced shapes and the rows of every token agree with it."""
        for rows, value in zip(values, _tensors(node), strict=True):
            traced = [size_expression(size) for size in value.shape]
            claimed = [extent(dim) for dim in rows]
            if claimed != traced:
                text = f"the rule for {node.target} lays it out {show(rows)}, traced {traced}; please report this"
                return self._refused(node, parents, _fixed_by_the_trace(node, claimed, traced) or text)
            expected = set[tuple[str, int]]().union(*(self.axes[source.name] for source in sources))
            if 0 not in traced and set(token_axes(one_row_each(rows))) != expected:
                text = f"{node.target}: {show(rows)} does not hold every token axis; please report this"
                return self._refused(node, parents, text)
        if isinstance(node.meta["val"], torch.Tensor):
            return Fact(sources, values[0], because)
        return Fact(sources, None, because, tuple(Fact(sources, rows, because) for rows in values))

    def _element(self, node: Node) -> Fact:
        parent, place = node.args
        assert isinstance(parent, Node)
        elements = self.facts[parent].elements
        if elements is None or not isinstance(place, int):
            return _lost("operands", f"part of {parent.name}", (parent,), self._union((parent,)) or {CONTEXT})
        part = elements[place]
        return Fact(part.depends_on, part.rows, Because("part", f"part {place} of {parent.name}", (parent,)))

    def _number(self, node: Node, operands: tuple[Node, ...]) -> Fact:
        """A Python number or a symbol: sizes give length; one read from a tensor's data is context."""
        value = node.meta["val"]
        if not _is_symbolic(value):
            return Fact(_NOTHING, (), Because("number", f"the number {value!r}"))
        if _reads_a_size(node.target):
            return _lost("size", f"{value} is a size of an input", (), {LENGTH})
        if any(isinstance(o.meta.get("val"), torch.Tensor) for o in operands):
            return self._refused(node, operands, f"{node.target} reads a number from a tensor's data")
        return _lost("size", f"{value} is computed from sizes", operands, self._union(operands) | {LENGTH})

    def _refused(self, node: Node, operands: Sequence[Node], text: str, adds: Source = CONTEXT) -> Fact:
        """Token-only is lost here: the reader is sent to this node, not further up."""
        return _lost("refused", text, (), self._union(operands) | {adds})

    def _union(self, nodes: Sequence[Node]) -> frozenset[Source]:
        return _NOTHING.union(*(self.facts[node].depends_on for node in nodes))


def _fixed_by_the_trace(node: Node, claimed: Sequence[sympy.Expr], traced: Sequence[sympy.Expr]) -> str:
    """That a size which follows from an input's has become a number here, as n // 2 does where 2 ≤ n ≤ 3; "" otherwise."""
    apart = [(size, number) for size, number in zip(claimed, traced, strict=False) if size != number]
    if len(claimed) != len(traced) or not all(size.free_symbols and number.is_Integer for size, number in apart):
        return ""
    return f"{node.target}: the trace took " + ", ".join(f"{size} to be {number}" for size, number in apart)


def _lost(rule: str, text: str, parents: tuple[Node, ...], sources: frozenset[Source] | set[Source]) -> Fact:
    return Fact(frozenset(sources), None, Because(rule, text, parents))


def _reads_a_size(target: Overload) -> bool:
    aten = torch.ops.aten
    return target in (aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int, aten.sym_storage_offset.default)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _tensors(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_static(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and all(static_size(size) is not None for size in value.shape)


def _static_rows(value: torch.Tensor) -> Rows:
    return tuple(feature(size_expression(size)) for size in value.shape)
