"""Which inputs carry token ids, and which ids: inferred from the graph, stated by the user, or refused."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from .._torch import schema_arguments, size_expression, static_size
from ..errors import TokenInputError
from .program import Domain
from .provenance import where

aten = torch.ops.aten

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_BOUNDS: dict[Any, str] = {
    aten.embedding.default: "embedding",
    aten.index_select.default: "embedding",
    aten.index.Tensor: "index",
    aten.gather.default: "gather",
    aten.one_hot.default: "gather",
}

# Operations under which an index is still the same id: only where it lies, or its integer width, changes.
_SHAPE_ONLY = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.flatten.using_ints,
        aten.unflatten.int,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.expand.default,
        aten.contiguous.default,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten._to_copy.default,
        aten.to.dtype,
    }
)


MOST_IDS = 2**27
"""Of a domain: a list of them takes 1 GiB."""


@dataclass(frozen=True)
class TokenInput:
    """States that an input carries token ids.

    Args:
        name: the parameter name of the model's forward (for a pytree argument, the placeholder name in the graph).
        domain: the number of ids, so ids are 0 … domain-1; None: inferred. At most `MOST_IDS` without `reachable`.
        reachable: the ids that occur in use; tables then hold only these, and any other id raises
            `UnreachableTokenError`. None: all.
    """

    name: str
    domain: int | None = None
    reachable: Iterable[int] | None = None

    def __post_init__(self) -> None:
        if self.reachable is not None:
            if not isinstance(self.reachable, Iterable):
                raise TokenInputError(
                    f"TokenInput({self.name!r}): reachable is {self.reachable!r}; pass the ids, as in [0, 5, 7]"
                )
            object.__setattr__(self, "reachable", tuple(sorted({_as_id(token) for token in self.reachable})))
            if not self.reachable:
                raise TokenInputError(f"TokenInput({self.name!r}): reachable holds no id")
        if self.domain is not None and (isinstance(self.domain, bool) or not isinstance(self.domain, int) or self.domain < 1):
            raise TokenInputError(f"TokenInput({self.name!r}): domain must be a positive int, not {self.domain!r}")
        if self.domain is not None and self.domain > MOST_IDS and self.reachable is None:
            raise TokenInputError(
                f"TokenInput({self.name!r}): every id is looked at, and a domain of {self.domain:,} is beyond {MOST_IDS:,}; "
                "state the ids that occur with reachable="
            )


def as_token_inputs(tokens: Iterable[TokenInput]) -> list[TokenInput]:
    """`tokens` as a list.

    Raises:
        TokenInputError: it is no collection of `TokenInput`s, or states one input twice.
    """
    listed = list(tokens) if isinstance(tokens, Iterable) else None
    if listed is None or not all(isinstance(token, TokenInput) for token in listed):
        raise TokenInputError(f"tokens is {tokens!r}; pass a list, such as [foldfx.TokenInput('ids')]")
    names = [token.name for token in listed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TokenInputError(f"tokens states {', '.join(map(repr, twice))} more than once; state each input once")
    return listed


def _as_id(token: object) -> int:
    try:
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError as error:
        raise TokenInputError(f"reachable holds {token!r}, which is no integer") from error


@dataclass(frozen=True)
class TableLookup:
    """A table read at an index.

    Attributes:
        node: the operation.
        index: the node whose values select entries.
        rows: the number of entries.
    """

    node: Node
    index: Node
    rows: int

    @property
    def bounds(self) -> str:
        """What an id outside the table does, in the terms of `runtime.BOUNDS`."""
        return _BOUNDS[self.node.target]

    def __str__(self) -> str:
        return f"{self.node.name} ({self.rows} rows, {where(self.node)})"


def token_domains(graph: Graph, stated: Iterable[TokenInput] | None) -> dict[str, Domain]:
    """The domain of each token input, by placeholder name.

    Args:
        graph: a captured graph.
        stated: what the user says; None infers every token input. Stated inputs alone count where any are given.

    Raises:
        TokenInputError: an unknown or non-integer name, a domain larger than a table the ids index directly, or
            nothing to infer; candidates are named.
    """
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    direct: dict[str, list[TableLookup]] = {}
    derived: dict[str, list[TableLookup]] = {}
    reached = origins(graph)
    for lookup in table_lookups(graph):
        names, shape_only = reached[lookup.index]
        for name in (name for name in inputs if name in names and _is_integer(inputs[name])):
            (direct if shape_only else derived).setdefault(name, []).append(lookup)
    if stated is not None:
        return {token.name: _stated(token, inputs, direct) for token in stated}
    if not direct:
        raise TokenInputError(_nothing_inferred(inputs, derived))
    return {name: _inferred(lookups) for name, lookups in direct.items()}


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _INTEGERS


def table_lookups(graph: Graph) -> list[TableLookup]:
    """Every read of a table of known length, in graph order."""
    found: list[TableLookup] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten.embedding.default:
            weight, index = node.args[0], node.args[1]
            found.append(TableLookup(node, index, int(weight.meta["val"].shape[0])))
        elif node.target is aten.index_select.default or node.target is aten.gather.default:
            table, dim, index = node.args[:3]
            found += _indexed(node, [(dim, index)], table)
        elif node.target is aten.index.Tensor:
            table, indices = node.args[:2]
            found += _indexed(node, enumerate(indices), table)
        elif node.target is aten.one_hot.default:
            found.append(TableLookup(node, node.args[0], int(schema_arguments(node)["num_classes"])))
    return [lookup for lookup in found if lookup.rows > 0]


def _indexed(node: Node, indices: Iterable[tuple[int, Node | None]], table: Node) -> list[TableLookup]:
    """The lookups of one indexing operation along dimensions of static size."""
    sizes = table.meta["val"].shape
    pairs = [(static_size(sizes[dim]), index) for dim, index in indices if index is not None]
    return [TableLookup(node, index, rows) for rows, index in pairs if rows is not None]


def origins(graph: Graph) -> dict[Node, tuple[frozenset[str], bool]]:
    """For each node: the inputs it is computed from, and whether every step on the way was shape-only."""
    result: dict[Node, tuple[frozenset[str], bool]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            result[node] = frozenset({node.name}), True
            continue
        tensors = [result[o] for o in node.all_input_nodes if isinstance(o.meta.get("val"), torch.Tensor)]
        names = frozenset[str]().union(*(origin for origin, _ in tensors))
        moves = node.target in _SHAPE_ONLY or _keeps_all(node)
        shape_only = moves and _is_integer(node) and all(same for _, same in tensors)
        result[node] = names, shape_only
    return result


def _keeps_all(node: Node) -> bool:
    """A slice of everything, as `ids[:, None]` makes one."""
    if node.target is not aten.slice.Tensor:
        return False
    operand = node.args[0]
    assert isinstance(operand, Node)
    return list(map(size_expression, operand.meta["val"].shape)) == list(map(size_expression, node.meta["val"].shape))


def _inferred(lookups: list[TableLookup]) -> Domain:
    smallest = min(lookups, key=lambda lookup: lookup.rows)
    return Domain(smallest.rows, False, f"rows of the smallest table it indexes, {smallest}")


def _stated(token: TokenInput, inputs: dict[str, Node], direct: dict[str, list[TableLookup]]) -> Domain:
    node = inputs.get(token.name)
    if node is None or not _is_integer(node):
        known = [name for name, candidate in inputs.items() if _is_integer(candidate)]
        what = "is not an integer tensor" if node is not None else "is not an input"
        raise TokenInputError(f"TokenInput {token.name!r} {what} of the captured graph; integer inputs: {known}")
    lookups = direct.get(token.name, [])
    if token.domain is None:
        if not lookups:
            raise TokenInputError(f"TokenInput {token.name!r} indexes no table directly, so state its domain: domain=…")
        return _reachable(token, _inferred(lookups))
    if lookups and token.domain > (smallest := _inferred(lookups)).size:
        raise TokenInputError(
            f"TokenInput {token.name!r} states a domain of {token.domain} ids, but {smallest.because} holds {smallest.size}"
        )
    return _reachable(token, Domain(token.domain, True, "stated"))


def _reachable(token: TokenInput, domain: Domain) -> Domain:
    if token.reachable is None:
        return domain
    ids = tuple(token.reachable)
    if ids[0] < 0 or ids[-1] >= domain.size:
        raise TokenInputError(
            f"TokenInput {token.name!r}: reachable ids {ids[0]}..{ids[-1]} are not all in 0..{domain.size - 1}"
        )
    return replace(domain, reachable=ids)


def _nothing_inferred(inputs: dict[str, Node], derived: dict[str, list[TableLookup]]) -> str:
    candidates = [
        f"{name} (reaches {', '.join(map(str, lookups))} through operations that change its value)"
        for name, lookups in derived.items()
    ]
    others = [name for name, node in inputs.items() if _is_integer(node) and name not in derived]
    if candidates:
        return (
            f"which input carries token ids is ambiguous; candidates: {'; '.join(candidates)}. "
            "State it: tokens=[foldfx.TokenInput(name, domain=…)]"
        )
    return (
        f"no integer input indexes a table through shape-only operations; integer inputs: {others or 'none'}. "
        "State it: tokens=[foldfx.TokenInput(name, domain=…)]"
    )
