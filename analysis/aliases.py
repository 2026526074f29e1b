"""Aliases: which values and which state stand on common memory.

Facts are derived from storages and operator schemas each time, never stored on nodes (a saved and reloaded graph loses
the sharing of its traced values).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.fx import Node

from .._torch import is_mutable, is_overload, storage_key
from .program import Program

aten = torch.ops.aten


class Alias(IntEnum):
    """Whether two values share memory."""

    NO = 0
    MAY = 1
    MUST = 2


# Their schema declares a view, but they copy where the memory layout asks for it.
_MAY_COPY = frozenset(
    {
        aten.reshape.default,
        aten.reshape_as.default,
        aten.contiguous.default,
        aten.flatten.using_ints,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.to.other,
    }
)

# Composites that may hand back an operand, though their schema does not say so.
_UNDECLARED = frozenset(
    {
        aten.type_as.default,
        aten.einsum.default,
        aten.broadcast_tensors.default,
        aten.meshgrid.default,
        aten.meshgrid.indexing,
        aten.atleast_1d.default,
        aten.atleast_2d.default,
        aten.atleast_3d.default,
        aten.dropout.default,
        aten.feature_dropout.default,
        aten.alpha_dropout.default,
        aten.pad.default,
    }
)

Roots = dict[object, Alias]
"""Allocations a value stands on: a state storage, an input, or the node that made it; and how surely."""


@dataclass(frozen=True)
class Aliases:
    """The storage sets of one program."""

    roots: Mapping[Node, Roots]
    state: Mapping[Node, torch.Tensor]
    writers: tuple[Node, ...]

    def between(self, one: Node, other: Node) -> Alias:
        """Whether two values of the graph share memory: the surest common root decides.

        State read twice through disjoint views of one allocation does not alias.
        """
        if one in self.state and other in self.state:
            return state_alias(self.state[one], self.state[other])
        shared = self.roots[one].keys() & self.roots[other].keys()
        return max((min(self.roots[one][root], self.roots[other][root]) for root in shared), default=Alias.NO)

    def may_reach(self, value: Node, outputs: list[Node]) -> bool:
        """Whether any of `outputs` may stand on the memory that `value` made."""
        return any(self.between(value, output) for output in outputs)


def analyze_aliases(program: Program) -> Aliases:
    """The storage sets of every value; an operation without a schema may alias and may write all its operands."""
    roots: dict[Node, Roots] = {}
    state: dict[Node, torch.Tensor] = {}
    writers = []
    for node in program.graph.nodes:
        if node.op == "get_attr":
            tensor = state_tensor(program, str(node.target))
            roots[node] = {} if tensor is None else {storage_key(tensor): Alias.MUST}
            if tensor is not None:
                state[node] = tensor
        elif node.op == "placeholder":
            roots[node] = {node.name: Alias.MUST}
        elif node.op == "call_function":
            roots[node] = _call_roots(node, roots)
            if node.target is not operator.getitem and _may_do_anything(node) and not _touches_no_tensor(node):
                writers.append(node)
        else:
            roots[node] = {}
    return Aliases(roots, state, tuple(writers))


def _may_do_anything(node: Node) -> bool:
    """No schema, or one that declares a write or says nothing reliable."""
    if not is_overload(node.target):
        return True
    return torch.Tag.maybe_aliasing_or_mutating in node.target.tags or is_mutable(node.target)


def _touches_no_tensor(node: Node) -> bool:
    """Arithmetic on sizes, say."""
    sizes = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return all(isinstance(operand.meta.get("val"), sizes) for operand in node.all_input_nodes)


def _call_roots(node: Node, roots: Mapping[Node, Roots]) -> Roots:
    own: Roots = {node: Alias.MUST}
    if node.target is operator.getitem:
        parent = node.args[0]
        return roots[parent] if isinstance(parent, Node) else own
    if not is_overload(node.target):
        return own | _weakened(node, roots, Alias.MAY)
    if _may_do_anything(node) or node.target in _UNDECLARED:
        return own | _weakened(node, roots, Alias.MAY)
    if not any(result.alias_info is not None for result in node.target._schema.returns):
        return own
    surely = Alias.MAY if node.target in _MAY_COPY else Alias.MUST
    inherited = _weakened(node, roots, surely, first=True)
    return inherited if surely is Alias.MUST else own | inherited


def _weakened(node: Node, roots: Mapping[Node, Roots], surely: Alias, first: bool = False) -> Roots:
    """The operands' roots, none surer than `surely`; a view stands on its first operand alone."""
    operands = node.all_input_nodes[:1] if first else node.all_input_nodes
    return {root: min(kind, surely) for operand in operands for root, kind in roots[operand].items()}


def state_tensor(program: Program, name: str) -> torch.Tensor | None:
    """The tensor registered (or held as a constant) under a state name."""
    value = operator.attrgetter(name)(program.module)
    return value if isinstance(value, torch.Tensor) else None


def state_alias(one: torch.Tensor, other: torch.Tensor) -> Alias:
    """Whether two tensors share elements: MUST where both are dense and their ranges meet, MAY where they interleave."""
    if storage_key(one) != storage_key(other) or not one.numel() or not other.numel():
        return Alias.NO
    (first, first_end), (second, second_end) = _byte_range(one), _byte_range(other)
    if first_end <= second or second_end <= first:
        return Alias.NO
    return Alias.MUST if _is_dense(one) and _is_dense(other) else Alias.MAY


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last byte the tensor touches in its storage."""
    reach = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (reach + 1) * tensor.element_size()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Every element between its first and last is its own."""
    start, end = _byte_range(tensor)
    return end - start == tensor.numel() * tensor.element_size()
