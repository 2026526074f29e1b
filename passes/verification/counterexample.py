"""A call on which candidate and original differ, with everything needed to see it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from ..._torch import flatten_inputs, tree_flatten
from ...analysis.example import Example
from ...analysis.program import Program
from .compare import Comparison
from .difference import Difference
from .figures import Limits
from .subgraphs import flat_graph, part

STANDS_FOR = "foldfx_stands_for"
"""`node.meta` key of a node that took the place of others: their names, in the program before."""


@dataclass(frozen=True)
class Counterexample:
    """One call that shows a difference.

    Attributes:
        call: what kind of call, e.g. "example 0" or "table of linear, layout scalar []".
        example: its arguments; for a table the ids alone, in the order of the region's inputs.
        difference: where and by how much, with the element that differs most.
        node: the graph node concerned: the value tabulated, or the value returned; "" where it is not a value.
        tokens: ids whose table rows differ, at most eight; () where complete outputs were compared.
        inputs: names of the token inputs the example's arguments go to; () for a complete call.
        limits: those it was found with, where they are not the run's.
        candidate: the program that differs.
    """

    call: str
    example: Example
    difference: Difference
    node: str = ""
    tokens: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    limits: Limits | None = None
    candidate: Program | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        rows = f", ids {', '.join(map(str, self.tokens))}" if self.tokens else ""
        return f"{self.call}: {self.difference}{rows}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable, without the tensors of the call."""
        return {"call": self.call, "node": self.node, "tokens": list(self.tokens), **self.difference.to_dict()}

    def graphs(self, captured: Program) -> tuple[GraphModule, GraphModule, list[Any]]:
        """Original and candidate as graphs with flat inputs, and the inputs on which they differ.

        For a table: the region that computes its value, and the part of the candidate that looks it up.

        Args:
            captured: the program before any rewrite.

        Raises:
            ValueError: the candidate does not say which of its nodes stands for the value, or was not kept; or the
                difference is one of exceptions, so there are no values of the original to compare with.
        """
        if self.candidate is None:
            raise ValueError(f"{self.call}: the candidate was not kept")
        if not self.difference.where:
            raise ValueError(f"{self}: there are no two values to compare")
        if not self.inputs:
            flat = flatten_inputs(captured.module, self.example.args, dict(self.example.kwargs))
            return flat_graph(captured), flat_graph(self.candidate), flat
        original = next((node for node in captured.graph.nodes if node.name == self.node), None)
        standing = standing_for(self.candidate, self.node)
        standing = standing or [node for node in self.candidate.graph.nodes if node.name == self.node]
        if original is None or not standing:
            raise ValueError(f"no node of the candidate is, or is marked as standing for, {self.node}")
        return part(captured, original, self.inputs), part(self.candidate, standing[-1], self.inputs), list(self.example.args)


def counterexamples(comparison: Comparison, call: str, example: Example, candidate: Program | None) -> list[Counterexample]:
    """One for each difference of a call of `candidate` (None where there is no graph to name values in)."""
    found = []
    for difference in comparison.differences:
        node = "" if candidate is None or difference.leaf is None else _returned(candidate, difference.leaf)
        found.append(Counterexample(call, example, difference, node, candidate=candidate))
    return found


def _returned(program: Program, leaf: int) -> str:
    """The name of the node that is leaf number `leaf` of what the program returns."""
    leaves: list[Any] = tree_flatten(program.graph.output_node().args[0])[0]
    return str(leaves[leaf]) if leaf < len(leaves) else ""


def standing_for(program: Program, name: str) -> list[Node]:
    """The nodes of a rewritten program that took the place of a value of the captured one."""
    return [node for node in program.graph.nodes if name in node.meta.get(STANDS_FOR, ())]
