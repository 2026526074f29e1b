"""Runs part of a region on ids of one's own choosing: how tables are built, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch.fx import Node

from .._torch import size_expression, static_size
from ..analysis.rows import Atom, TokenAxis
from .region import Region, RegionError, ancestors, is_size, value_operands

Ids = Mapping[str, torch.Tensor]
"""Token ids by input name."""


class RegionRunner:
    """Evaluates values of a region, operation by operation as traced, for ids of any shape the operations allow.

    Args:
        region: the region.
        wanted: the values to return; what they do not need is not run, and is freed as soon as it is used up.

    Raises:
        RegionError: they read another input, if only its dtype.
    """

    def __init__(self, region: Region, wanted: Sequence[Node]) -> None:
        self.region = region
        self.wanted = list(wanted)
        needed = ancestors(self.wanted)
        self._constants: dict[Node, Any] = {}
        self._steps: list[tuple[Node, list[Node]]] = []
        last_reader = {operand: node for node in region.facts if node in needed for operand in value_operands(node)}
        for node in region.facts:
            if node not in needed or node in region.inputs:
                continue
            if node.op == "placeholder":
                raise RegionError(f"{', '.join(each.name for each in self.wanted)} cannot be run without input {node.name}")
            if region.facts[node].constant and self._is_fixed(node):
                with torch.no_grad():
                    self._constants[node] = self._evaluate(node, self._constants, {})
                continue
            done = [
                o for o in value_operands(node) if last_reader[o] is node and o not in self._constants and o not in self.wanted
            ]
            self._steps.append((node, done))

    def __call__(self, ids: Ids) -> list[torch.Tensor]:
        """The wanted values for `ids`, as the traced operations lay them out; no gradients.

        Args:
            ids: the tensor for each input of the region, by name.

        Raises:
            RegionError: an operation needs a size that the shapes of `ids` do not give, or does not take them.
        """
        symbols = self._symbols(ids)
        values: dict[Node, Any] = {node: ids[node.name] for node in self.region.inputs} | self._constants
        with torch.no_grad():
            for node, done in self._steps:
                try:
                    values[node] = self._evaluate(node, values, symbols)
                except (RuntimeError, IndexError, TypeError, ValueError) as error:
                    shapes = ", ".join(str(list(each.shape)) for each in ids.values())
                    raise RegionError(f"{node.name} cannot be run on ids of shape {shapes}: {error}") from error
                for operand in done:
                    values.pop(operand, None)
        return [values[node] for node in self.wanted]

    def rows(self, ids: Ids) -> list[torch.Tensor]:
        """The wanted values as [rows, width]: one row for each id (or combination), features in the value's order.

        Raises:
            RegionError: as above, or a value does not have the shape that its layout says.
        """
        return [self._as_rows(node, value, ids) for node, value in zip(self.wanted, self(ids), strict=True)]

    def _as_rows(self, node: Node, value: torch.Tensor, ids: Ids) -> torch.Tensor:
        width = self.region.width(node)
        count = value.numel() // width
        if not self._is_traced_rank(ids):
            shape = ids[self.region.inputs[0].name].shape
            trailing = len(self.region.rows(node)) - len(self.region.index_rows(node))
            if not self.region.is_trailing(node) or value.shape[: value.dim() - trailing] != shape or count != shape.numel():
                raise RegionError(f"{node.name} has shape {list(value.shape)} for ids of shape {list(shape)}")
            return value.reshape(count, width)
        atoms = [atom for dim in self.region.rows(node) for atom in dim]
        sizes = [_extent(atom, ids) for atom in atoms]
        if prod(sizes) != value.numel():
            shapes = ", ".join(str(list(each.shape)) for each in ids.values())
            raise RegionError(f"{node.name} has shape {list(value.shape)} for ids of shape {shapes}")
        order = [*self.region.token_order(atoms), *(i for i, atom in enumerate(atoms) if not isinstance(atom, TokenAxis))]
        return value.reshape(sizes).permute(order).reshape(count, width)

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

    def _evaluate(self, node: Node, values: dict[Node, Any], symbols: dict[sympy.Expr, int]) -> Any:
        if node.op == "get_attr":
            return attrgetter(str(node.target))(self.region.program.module)

        def value(argument: Node) -> Any:
            if is_size(argument):
                return _size(argument, symbols)
            return values[argument] if argument in value_operands(node) else _like(argument)

        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        return target(*torch.fx.node.map_arg(node.args, value), **torch.fx.node.map_arg(node.kwargs, value))


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


def _like(node: Node) -> torch.Tensor:
    """A stand-in for an operand of which only dtype and device are read."""
    traced = node.meta["val"]
    return torch.empty(0, dtype=traced.dtype, device=traced.device)


def _size(node: Node, symbols: dict[sympy.Expr, int]) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.SymInt):
        return value
    expression = size_expression(value).subs(symbols)
    if not expression.is_Integer:
        raise RegionError(f"{node.name} is the size {value}, which the shape of the ids does not give")
    return int(expression)
