"""What the dependence analysis says about a value, and the proof or refusal that a reviewer reads."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch.fx import Node

from .provenance import where
from .rows import Rows, show


@dataclass(frozen=True, order=True)
class Source:
    """Something a value may depend on.

    Attributes:
        kind: "token" (`name` is the input), "position" (an index along a token axis), "length" (a size of an input),
            "window" (`name` is the number of neighbouring ids) or "context" (anything else, so nothing is known).
        name: see `kind`; empty where it says nothing.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}({self.name})" if self.name else self.kind


POSITION, LENGTH, CONTEXT = Source("position"), Source("length"), Source("context")


def token(name: str) -> Source:
    return Source("token", name)


def window(ids: int) -> Source:
    return Source("window", str(ids))


@dataclass(frozen=True)
class Because:
    """Why a fact holds: the rule, one sentence, and the nodes whose facts it stands on."""

    rule: str
    text: str
    parents: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Fact:
    """What one value depends on.

    Attributes:
        depends_on: the sources; empty for a constant.
        rows: how token axes lie in the value; None once anything but tokens and constants is involved, and for
            values that are not one tensor.
        because: the proof, or the refusal.
        elements: the facts of the parts, for a value that is a tuple of tensors.
    """

    depends_on: frozenset[Source]
    rows: Rows | None
    because: Because
    elements: tuple[Fact, ...] | None = None

    @property
    def constant(self) -> bool:
        return not self.depends_on

    @property
    def tokens(self) -> tuple[str, ...]:
        """The token inputs it depends on, sorted."""
        return tuple(sorted(source.name for source in self.depends_on if source.kind == "token"))

    @property
    def token_only(self) -> bool:
        """Depends on token ids and on nothing else."""
        return bool(self.depends_on) and all(source.kind == "token" for source in self.depends_on)

    @property
    def known(self) -> bool:
        """Constant or token-only with a layout: what rules may reason about."""
        return self.rows is not None or self.elements is not None

    def describe(self) -> str:
        if self.constant:
            return "constant"
        return " + ".join(map(str, sorted(self.depends_on)))


@dataclass(frozen=True)
class Facts(Mapping[Node, Fact]):
    """The facts of every node of one graph, in graph order."""

    by_node: Mapping[Node, Fact] = field(repr=False)

    def __getitem__(self, node: Node) -> Fact:
        return self.by_node[node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_node)

    def __len__(self) -> int:
        return len(self.by_node)

    def node(self, name: str | Node) -> Node:
        """The node called `name`.

        Raises:
            KeyError: no node has that name; the message lists the nearest ones.
        """
        for node in self.by_node:
            if node is name or node.name == name:
                return node
        near = [node.name for node in self.by_node if str(name) in node.name] or [n.name for n in self.by_node][:8]
        raise KeyError(f"no node {name!r} in this graph; did you mean one of {near}?")

    def explain(self, node: str | Node) -> str:
        """The proof that a value depends on token ids alone, or the reason it does not, with file:line.

        Args:
            node: a node of the graph or its name.

        Raises:
            KeyError: there is no such node.
        """
        start = self.node(node)
        fact = self[start]
        layout = f", laid out {show(fact.rows)}" if fact.rows is not None else ""
        lines = [f"{start.name} depends on: {fact.describe()}{layout}"]
        for reached in proof(start, self._parents, self._proved):
            step = self[reached]
            lines.append(f"  {reached.name} ({where(reached)}): {step.because.text}")
        return "\n".join(lines)

    def refusal(self, node: Node) -> Node:
        """The node at which token-only was lost on the way to `node`: the first one to name when refusing."""
        return node if self._proved(node) else proof(node, self._parents, self._proved)[-1]

    def _parents(self, node: Node) -> Sequence[Node]:
        return self[node].because.parents

    def _proved(self, node: Node) -> bool:
        return self[node].token_only or self[node].constant


Value = TypeVar("Value", bound=Hashable)


def proof(start: Value, parents: Callable[[Value], Sequence[Value]], proved: Callable[[Value], bool]) -> list[Value]:
    """The values worth reading to see what one depends on: the whole proof if it is proved, else the way to what was lost.

    Args:
        start: the value.
        parents: those whose facts the fact of a value stands on.
        proved: whether a value is constant or token-only.
    """
    if proved(start):
        order: dict[Value, None] = {}
        stack = [start]
        while stack:
            value = stack.pop()
            if value not in order:
                order[value] = None
                stack.extend(reversed(parents(value)))
        return list(order)
    path = [start]
    while culprits := [value for value in parents(path[-1]) if not proved(value)]:
        path.append(culprits[0])
    return path
