"""Decisions: where floats become discrete, so that a rounding error can become another choice."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from .._torch import schema_arguments
from .facts import Facts
from .program import Program
from .provenance import where

aten = torch.ops.aten

Margin = Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]
"""Scores and the operation's arguments → the distance of each decision from another outcome."""


@dataclass(frozen=True)
class Decision:
    """One operation whose result is discrete and whose operand is a float.

    Attributes:
        node: the operation.
        kind: "top-k", "argmax", "sort", "comparison", "rounding", "cast", "buckets" or "draw".
        score: the float operand.
        arguments: the operation's arguments by schema name, for its margin.
        token_only: the decision depends on token ids alone, so it can be enumerated.
        feeds: what it reaches: "output 0", "attribute load_balance_loss", "buffer count", "input ids".
    """

    node: Node
    kind: str
    score: Node
    arguments: Mapping[str, Any] = field(hash=False, compare=False)
    token_only: bool
    feeds: tuple[str, ...]

    @property
    def foldable(self) -> bool:
        """A draw never is: it depends on the random generator."""
        return self.token_only and self.kind != "draw"

    @property
    def outcomes(self) -> tuple[Node, ...]:
        """The values that hold the choice: indices, where the operation yields values and indices."""
        if not isinstance(self.node.meta.get("val"), tuple | list):
            return (self.node,)
        return tuple(user for user in self.node.users if user.target is operator.getitem and user.args[1] == 1)

    def margin(self, score: torch.Tensor, operands: Mapping[Node, Any] = MappingProxyType({})) -> torch.Tensor:
        """How far each decision is from another outcome, in units of the score; 0 is a tie.

        For a choice among several that is the distance between the last chosen and the first not chosen (sorting: the
        least distance between neighbours); for a comparison or a rounding the distance to the threshold. Infinite
        where no other outcome exists.

        Args:
            score: the operand's value, of any float dtype; margins are computed in float64.
            operands: values of the other operands, by node.

        Returns:
            float64, the score's shape without the dimension chosen along.

        Raises:
            ValueError: a draw has no margin.
        """
        margin = _KINDS[self.node.target][1]
        if margin is None:
            raise ValueError(f"{self.node.name} draws at random; its outcome has no margin")
        others = {name: value for name, value in self.arguments.items() if value is not self.score}
        known = {name: operands.get(value, value) if isinstance(value, Node) else value for name, value in others.items()}
        return margin(score.double(), known)

    def rank_margin(self, score: torch.Tensor, operands: Mapping[Node, Any] = MappingProxyType({})) -> torch.Tensor:
        """`margin`, but from another order of what a top-k chooses, too: the least distance of neighbours among k+1."""
        if self.kind != "top-k":
            return self.margin(score, operands)
        k, dim = int(self.arguments["k"]), int(self.arguments.get("dim", -1))
        if score.dim() == 0 or min(k + 1, score.shape[dim]) < 2:
            return self.margin(score, operands)
        best = score.double().topk(min(k + 1, score.shape[dim]), dim, bool(self.arguments.get("largest", True))).values
        return best.diff(dim=dim).abs().amin(dim)

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node.name,
            "at": where(self.node),
            "kind": self.kind,
            "score": self.score.name,
            "token_only": self.token_only,
            "feeds": list(self.feeds),
        }


def find_decisions(program: Program, facts: Facts) -> list[Decision]:
    """Every decision of a program, in graph order.

    Not decisions: choices by integers (they are exact), and `max` or `sort` of which only the values are read.
    """
    feeds = reached_observables(program)
    found = []
    for node in program.graph.nodes:
        if node.target in _KINDS and (score := _score(node)) is not None and _is_read(node):
            kind, _ = _KINDS[node.target]
            arguments = schema_arguments(node)
            found.append(Decision(node, kind, score, arguments, facts[node].token_only, tuple(feeds[node])))
    return found


def _score(node: Node) -> Node | None:
    """The float operand, or None where a decision is by integers, or a cast makes no integers."""
    operands = [each for each in node.all_input_nodes if _is_float(each)]
    if not operands or (node.target in _CASTS and _is_float(node)):
        return None
    return operands[0]


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_read(node: Node) -> bool:
    """Of an operation that yields values and indices, whether anything reads the indices."""
    if not isinstance(node.meta.get("val"), tuple | list):
        return True
    return any(user.target is operator.getitem and user.args[1] == 1 and user.users for user in node.users)


def reached_observables(program: Program) -> dict[Node, list[str]]:
    """For each node what it reaches: outputs by place, observables, buffers and inputs written, in order."""
    reached: dict[Node, dict[str, None]] = {node: {} for node in program.graph.nodes}
    output = program.graph.output_node()
    leaves = list(_flat(output.args[0]))
    attributes = [f"attribute {name}" for name, count in program.observables.items() for _ in range(count)]
    names = [f"output {place}" for place in range(len(leaves) - len(attributes))] + attributes
    for leaf, name in zip(leaves, names, strict=True):
        if isinstance(leaf, Node):
            reached[leaf][name] = None
    for node in reversed(list(program.graph.nodes)):
        if node.target is aten.copy_.default and isinstance(written := node.args[0], Node):
            kind = "buffer" if written.op == "get_attr" else "input"
            reached[node][f"{kind} {written.target}"] = None
        for operand in node.all_input_nodes if node is not output else ():
            reached[operand] |= reached[node]
    return {node: sorted(names) for node, names in reached.items()}


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _between(score: torch.Tensor, k: int, dim: int, largest: bool) -> torch.Tensor:
    """The distance between the k-th best score and the next one."""
    if score.dim() == 0 or k >= score.shape[dim]:
        return torch.full(_without(score, dim), torch.inf, dtype=torch.float64)
    best = score.topk(k + 1, dim, largest).values
    return (best.select(dim, k - 1) - best.select(dim, k)).abs()


def _without(score: torch.Tensor, dim: int) -> list[int]:
    shape = list(score.shape)
    if shape:
        del shape[dim]
    return shape


def _top_k(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    return _between(score, int(arguments["k"]), int(arguments.get("dim", -1)), bool(arguments.get("largest", True)))


def _extreme(largest: bool) -> Margin:
    def margin(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
        dim = arguments.get("dim")
        return _between(score.reshape(-1), 1, 0, largest) if dim is None else _between(score, 1, int(dim), largest)

    return margin


def _sorted(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    dim = int(arguments.get("dim", -1))
    if score.dim() == 0 or score.shape[dim] < 2:
        return torch.full(_without(score, dim), torch.inf, dtype=torch.float64)
    return score.sort(dim).values.diff(dim=dim).amin(dim)


def _compared(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    other = arguments.get("other", arguments.get("self", score))
    return (score - (other.double() if isinstance(other, torch.Tensor) else other)).abs()


def _to_integer(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    return (score - score.round()).abs()


def _to_half(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    scale = 10.0 ** int(arguments.get("decimals", 0))
    return ((score * scale - (score * scale).floor()) - 0.5).abs() / scale


def _truncated(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    """Towards zero: the integers next to zero, but not zero itself, are thresholds."""
    nearest = score.round()
    return torch.where(nearest == 0, 1 - score.abs(), (score - nearest).abs())


def _cast(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    return score.abs() if arguments.get("dtype") is torch.bool else _truncated(score, arguments)


def _to_zero(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    return score.abs()


def _buckets(score: torch.Tensor, arguments: Mapping[str, Any]) -> torch.Tensor:
    edges = arguments["boundaries"] if "boundaries" in arguments else arguments["sorted_sequence"]
    if not edges.shape[-1]:
        return torch.full(score.shape, torch.inf, dtype=torch.float64)
    apart = edges.double() if edges.dim() == 1 else edges.double().unsqueeze(-2)
    distance: torch.Tensor = (score.unsqueeze(-1) - apart).abs()
    return distance.amin(-1)


def _table(kind: str, margin: Margin | None, targets: Iterable[Any]) -> dict[Any, tuple[str, Margin | None]]:
    return dict.fromkeys(targets, (kind, margin))


_CASTS = (aten._to_copy.default, aten.to.dtype)

_NAMES = ("gt", "ge", "lt", "le", "eq", "ne")

_COMPARISONS = [getattr(getattr(aten, name), form) for name in _NAMES for form in ("Tensor", "Scalar")]

_KINDS: dict[Any, tuple[str, Margin | None]] = {
    **_table("top-k", _top_k, [aten.topk.default]),
    **_table("argmax", _extreme(True), [aten.argmax.default, aten.max.dim]),
    **_table("argmax", _extreme(False), [aten.argmin.default, aten.min.dim]),
    **_table("sort", _sorted, [aten.sort.default, aten.sort.stable, aten.argsort.default]),
    **_table("comparison", _compared, _COMPARISONS),
    **_table("rounding", _to_integer, [aten.floor.default, aten.ceil.default]),
    **_table("rounding", _to_half, [aten.round.default, aten.round.decimals]),
    **_table("rounding", _truncated, [aten.trunc.default]),
    **_table("rounding", _to_zero, [aten.sign.default, aten.sgn.default]),
    **_table("cast", _cast, _CASTS),
    **_table("buckets", _buckets, [aten.bucketize.Tensor, aten.searchsorted.Tensor]),
    **_table("draw", None, [aten.multinomial.default, aten.bernoulli.default]),
}
