"""Decisions: where floats become discrete, so that a rounding error can become another choice."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from .._torch import schema_arguments, static_size
from .decision_kinds import CASTS, DIVISIONS, KINDS, rank_margin
from .facts import Facts
from .own_values import without_itself
from .program import Program
from .promotion import promoted
from .provenance import where

aten = torch.ops.aten

Operands = Mapping[Node, Any]
"""Values of an operation's tensors, and of sizes it computes with, by node."""


@dataclass(frozen=True)
class Decision:
    """One operation whose result is discrete and whose operand is a float.

    Attributes:
        node: the operation.
        score: the float operand, one that is no constant if there is one.
        token_only: the decision depends on token ids alone, so it can be enumerated.
        feeds: what it reaches: "output 0", "attribute load_balance_loss", "buffer count", "input ids".
    """

    node: Node
    score: Node
    token_only: bool
    feeds: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The name of what is decided, see `decision_kinds.Kind`."""
        return KINDS[self.node.target].name

    @property
    def foldable(self) -> bool:
        """A draw never is: it depends on the random generator."""
        return self.token_only and self.kind != "draw"

    @property
    def without_margin(self) -> str:
        """Why it has no margin, or ""."""
        return "" if KINDS[self.node.target].margin else f"foldfx defines no margin for {self.node.target}"

    @property
    def operands(self) -> tuple[Node, ...]:
        """What a margin is computed from: tensors, and sizes where the k of a top-k is one."""
        return tuple(self.node.all_input_nodes)

    @property
    def outcomes(self) -> tuple[Node, ...]:
        """The values that hold the choice: indices, where the operation yields values and indices."""
        if not _yields_indices(self.node):
            return (self.node,)
        return tuple(user for user in self.node.users if user.target is operator.getitem and user.args[1] == 1)

    @property
    def laid_out_like(self) -> Node:
        """The value whose shape `spread` margins have."""
        kind = KINDS[self.node.target]
        return self.score if kind.chooses or kind.per_score else self.node

    def margin(self, operands: Operands) -> torch.Tensor:
        """How far each decision is from another outcome, in units of the score; 0 is a tie.

        For a choice among several that is the distance between the last chosen and the first not chosen (sorting: the
        least distance between neighbours); for a comparison or a rounding the distance to the threshold. Infinite
        where no other outcome exists, where a score is NaN, or where a value that is its own threshold meets itself.

        Args:
            operands: the values of `operands`; margins are computed in float64.

        Returns:
            float64, with the shape of the result, or for a choice that of the score without the dimension chosen along.

        Raises:
            ValueError: foldfx defines no margin for this operation.
        """
        margin = KINDS[self.node.target].margin
        if margin is None:
            raise ValueError(f"{self.node.name}: {self.without_margin}")
        found = margin(self._arguments(operands)).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return without_itself(found, self.node, operands)

    def rank_margin(self, operands: Operands) -> torch.Tensor:
        """`margin`, but from another order of what a top-k chooses, too: the least distance of neighbours among k + 1."""
        if self.kind != "top-k":
            return self.margin(operands)
        return rank_margin(self._arguments(operands)).nan_to_num(nan=torch.inf, posinf=torch.inf)

    def spread(self, margin: torch.Tensor, operands: Operands) -> torch.Tensor:
        """A margin as often as `laid_out_like` has elements: once for each of those chosen from."""
        if not KINDS[self.node.target].chooses:
            return margin
        score, dim = operands[self.score], schema_arguments(self.node)["dim"]
        return (margin.unsqueeze(dim) if score.dim() and dim is not None else margin).expand_as(score)

    def _arguments(self, operands: Operands) -> dict[str, Any]:
        known = {
            name: operands[value] if isinstance(value, Node) and value in operands else value
            for name, value in schema_arguments(self.node).items()
        }
        if self.node.target in CASTS:
            known["dtype"] = self.node.meta["val"].dtype
        alike = promoted(known, KINDS[self.node.target].wide)
        return {name: value.double() if _is_float_tensor(value) else value for name, value in alike.items()}

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

    Not decisions: choices by integers, also such as were cast to floats (they are exact), choices of nothing or among
    nothing, and `max` or `sort` of which only the values are read.
    """
    feeds = reached_observables(program)
    found = []
    for node in program.graph.nodes:
        if node.target in KINDS and _decides(node) and (scores := _scores(node)):
            score = next((each for each in scores if not facts[each].constant), scores[0])
            found.append(Decision(node, score, facts[node].token_only, tuple(feeds[node])))
    return found


def _scores(node: Node) -> list[Node]:
    """The float operands that can be the score."""
    arguments = schema_arguments(node)
    named = [arguments[name] for name in KINDS[node.target].scores if name in arguments]
    floats = [each for each in named if isinstance(each, Node) and _is_float_tensor(each.meta.get("val"))]
    return [each for each in floats if not _is_empty(each.meta["val"]) and not _is_cast_integer(each)]


def _decides(node: Node) -> bool:
    """Whether the result is discrete, not empty and, of an operation that yields values and indices, these are read."""
    value = node.meta.get("val")
    if _is_empty(value[-1] if isinstance(value, tuple | list) else value):
        return False
    if _yields_indices(node):
        return any(user.target is operator.getitem and user.args[1] == 1 and user.users for user in node.users)
    if node.target in DIVISIONS:
        return schema_arguments(node)["rounding_mode"] is not None
    return node.target not in CASTS or not _is_float_tensor(value)


def _yields_indices(node: Node) -> bool:
    """Whether it yields values and indices, rather than one result or a list."""
    return len(node.target._schema.returns) == 2  # type: ignore[union-attr]


def _is_float_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_cast_integer(node: Node) -> bool:
    """A float that is an integer, as counts of chosen experts are."""
    return node.target in CASTS and not _is_float_tensor(node.all_input_nodes[0].meta.get("val"))


def _is_empty(value: Any) -> bool:
    """A tensor that has no elements whatever the sizes."""
    return isinstance(value, torch.Tensor) and 0 in map(static_size, value.shape)


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
