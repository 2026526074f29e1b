"""Runs part of a region on ids of one's own choosing: how tables are built, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..._torch import size_expression, static_size
from ...analysis.rows import Atom, TokenAxis
from .region import Region, RegionError, closure, is_size, value_operands

Ids = Mapping[str, torch.Tensor]
"""Token ids by input name."""


class RegionRunner:
    """Evaluates values of a region, operation by operation as traced, for ids of any shape the operations allow.

    Args:
        region: the region.
        wanted: the values to return; what they do not need is not run, and is freed as soon as it is used up.
        given: values that each call is handed instead of computing them.

    Raises:
        RegionError: they read another input, if only its dtype.
    """

    def __init__(self, region: Region, wanted: Sequence[Node], given: Collection[Node] = ()) -> None:
        self.region = region
        self.wanted = list(wanted)
        needed = closure(wanted, lambda node: [] if node in given else _tensors(node)) - set(given)
        self._constants: dict[Node, Any] = {}
        self._nodes: list[Node] = []
        self._plans: dict[tuple[torch.Size, ...], _Plan] = {}
        for node in region.facts:
            if node not in needed or node in region.inputs:
                continue
            if node.op == "placeholder":
                raise RegionError(f"{', '.join(each.name for each in self.wanted)} cannot be run without input {node.name}")
            if region.facts[node].constant and self._is_fixed(node):
                with torch.no_grad():
                    self._constants[node] = self._constant(node)
            else:
                self._nodes.append(node)

    def __call__(self, ids: Ids, given: Mapping[Node, torch.Tensor] = MappingProxyType({})) -> list[torch.Tensor]:
        """The wanted values for `ids`, as the traced operations lay them out; no gradients.

        Args:
            ids: the tensor for each input of the region, by name.
            given: the values that are not computed.

        Raises:
            RegionError: an operation needs a size that the shapes of `ids` do not give, or does not take them.
        """
        values: dict[Node, Any] = {node: ids[node.name] for node in self.region.inputs} | dict(given)
        with torch.no_grad():
            for step in self._plan(ids).steps:
                try:
                    values[step.node] = step(values)
                except (RuntimeError, IndexError, TypeError, ValueError) as error:
                    raise RegionError(f"{step.node.name} cannot be run on ids of shape {_shapes(ids)}: {error}") from error
                for operand in step.done:
                    values.pop(operand, None)
        return [values[node] if node in values else self._constants[node] for node in self.wanted]

    def rows(self, ids: Ids) -> list[torch.Tensor]:
        """The wanted values as [rows, width]: one row for each id (or combination), features in the value's order.

        Raises:
            RegionError: as above, or a value does not have the shape that its layout says.
        """
        return [self.as_rows(node, value, ids) for node, value in zip(self.wanted, self(ids), strict=True)]

    def as_rows(self, node: Node, value: torch.Tensor, ids: Ids) -> torch.Tensor:
        """`value`, which the wanted `node` has for `ids`, as [rows, width].

        Raises:
            RegionError: it does not have the shape that its layout says.
        """
        orders = self._plan(ids).orders
        if node not in orders:
            orders[node] = self._order(node, value, ids)
        width, sizes, order = orders[node]
        ordered = value if sizes is None else value.reshape(sizes).permute(order)
        return ordered.reshape(-1, width)

    def from_rows(self, node: Node, rows: torch.Tensor, like: torch.Tensor, ids: Ids) -> torch.Tensor:
        """`rows` [rows, width] in the layout that `like`, a value of the wanted `node` for `ids`, has."""
        self.as_rows(node, like, ids)
        _, sizes, order = self._plan(ids).orders[node]
        if sizes is None:
            return rows.reshape(like.shape)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return rows.reshape([sizes[place] for place in order]).permute(inverse).reshape(like.shape)

    def _order(self, node: Node, value: torch.Tensor, ids: Ids) -> _Order:
        """How a value computed for ids of these shapes becomes rows."""
        width = self.region.width(node)
        if not self._is_traced_rank(ids):
            shape = ids[self.region.inputs[0].name].shape
            trailing = len(self.region.rows(node)) - len(self.region.index_rows(node))
            leading = value.shape[: value.dim() - trailing]
            if not self.region.is_trailing(node) or leading != shape or value.numel() != width * shape.numel():
                raise RegionError(f"{node.name} has shape {list(value.shape)} for ids of shape {list(shape)}")
            return width, None, []
        atoms = [atom for dim in self.region.rows(node) for atom in dim]
        sizes = [_extent(atom, ids) for atom in atoms]
        if prod(sizes) != value.numel():
            raise RegionError(f"{node.name} has shape {list(value.shape)} for ids of shape {_shapes(ids)}")
        order = [*self.region.token_order(atoms), *(i for i, atom in enumerate(atoms) if not isinstance(atom, TokenAxis))]
        return (width, None, []) if order == sorted(order) else (width, sizes, order)

    def _plan(self, ids: Ids) -> _Plan:
        """The operations to run for ids of these shapes, made when such ids first come."""
        key = tuple(ids[node.name].shape for node in self.region.inputs)
        if key not in self._plans:
            symbols = self._symbols(ids)
            last = {operand: node for node in self._nodes for operand in value_operands(node)}
            done = {node: [o for o in value_operands(node) if last[o] is node and o not in self.wanted] for node in self._nodes}
            self._plans[key] = _Plan([self._step(node, symbols, done[node]) for node in self._nodes], {})
        return self._plans[key]

    def _step(self, node: Node, symbols: Mapping[sympy.Expr, int], done: list[Node]) -> _Step:
        def known(argument: Node) -> Any:
            if is_size(argument):
                return _size(argument, symbols)
            if argument not in value_operands(node):
                return _like(argument)
            return self._constants.get(argument, argument)

        args, kwargs = torch.fx.node.map_arg(node.args, known), torch.fx.node.map_arg(node.kwargs, known)
        return _Step(node, node.target, args, kwargs, done)  # type: ignore[arg-type]

    def _constant(self, node: Node) -> Any:
        if node.op == "get_attr":
            return attrgetter(str(node.target))(self.region.program.module)
        return self._step(node, {}, [])({})

    def _is_traced_rank(self, ids: Ids) -> bool:
        return all(node.meta["val"].dim() == ids[node.name].dim() for node in self.region.inputs)

    def _is_fixed(self, node: Node) -> bool:
        """The same for ids of every shape: no operand is a symbolic size, or made with one."""
        tensors = [operand for operand in value_operands(node) if not isinstance(operand.meta.get("val"), int | float)]
        return all(operand in self._constants for operand in tensors)

    def _symbols(self, ids: Ids) -> dict[sympy.Expr, int]:
        """The sizes that the ids' shapes give to the traced symbols."""
        if not self._is_traced_rank(ids):
            return {}
        return {
            size_expression(size): actual
            for node in self.region.inputs
            for size, actual in zip(node.meta["val"].shape, ids[node.name].shape, strict=True)
            if static_size(size) is None
        }


@dataclass
class _Plan:
    """What is done for ids of certain shapes."""

    steps: list[_Step]
    orders: dict[Node, _Order]


_Order = tuple[int, list[int] | None, list[int]]
"""A value's width, and where its rows are not in order the sizes and permutation that bring them there."""


class _Step:
    """One operation, sizes and constants filled in; operands that are still nodes are looked up."""

    def __init__(
        self, node: Node, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], done: list[Node]
    ) -> None:
        self.node = node
        self.done = done
        self._target = target
        self._args = args
        self._kwargs = kwargs
        nested = any(isinstance(each, list | tuple | dict | slice) for each in (*args, *kwargs.values()))
        self._is_flat = not nested and not any(isinstance(each, Node) for each in kwargs.values())

    def __call__(self, values: Mapping[Node, Any]) -> Any:
        if self._is_flat:
            return self._target(*(values[each] if isinstance(each, Node) else each for each in self._args), **self._kwargs)
        args = torch.fx.node.map_arg(self._args, values.__getitem__)
        return self._target(*args, **torch.fx.node.map_arg(self._kwargs, values.__getitem__))


def _tensors(node: Node) -> list[Node]:
    return [operand for operand in value_operands(node) if not is_size(operand)]


def _extent(atom: Atom, ids: Ids) -> int:
    """The size of an atom in a call: of a whole token axis the size the ids have there.

    Raises:
        RegionError: an axis of symbolic length is split.
    """
    if isinstance(atom, TokenAxis) and atom.size == atom.whole:
        name, dim = min(pair for pair in atom.axes if pair[0] in ids)
        return ids[name].shape[dim]
    if not atom.size.is_Integer:
        raise RegionError(f"a view splits an axis of symbolic length, {atom}")
    return int(atom.size)


def _shapes(ids: Ids) -> str:
    return ", ".join(str(list(each.shape)) for each in ids.values())


def _like(node: Node) -> torch.Tensor:
    """A stand-in for an operand of which only dtype and device are read."""
    traced = node.meta["val"]
    return torch.empty(0, dtype=traced.dtype, device=traced.device)


def _size(node: Node, symbols: Mapping[sympy.Expr, int]) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.SymInt):
        return value
    expression = size_expression(value).subs(symbols)
    if not expression.is_Integer:
        raise RegionError(f"{node.name} is the size {value}, which the shape of the ids does not give")
    return int(expression)
