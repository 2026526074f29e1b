"""The graph all passes see: a functional ATen `GraphModule` with what is known about its inputs, state and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import sympy
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from .._torch import copy_graph, mark_non_persistent, size_expression

GUARDS = "_guards_fn"
"""The submodule that checks a captured graph's inputs, called once behind them; the name is torch.export's."""


class NoGuards(nn.Module):
    """Stands where export found nothing to check."""

    _is_impure = True  # torch.fx: a call that dead-code elimination keeps

    def forward(self, *inputs: object) -> None:
        """Accept every input."""


@dataclass(frozen=True)
class Domain:
    """The ids a token input may carry: 0 … size-1, or the reachable ones among them.

    Attributes:
        size: how many ids the tables it indexes allow.
        stated: whether the user stated it (else it was inferred).
        because: where the number comes from, for the report.
        reachable: the ids that occur, ascending; None for all.
    """

    size: int
    stated: bool
    because: str
    reachable: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        """How many ids a table has to answer for."""
        return self.size if self.reachable is None else len(self.reachable)

    @property
    def is_prefix(self) -> bool:
        """The reachable ids are 0 … rows-1, so an id is its own row."""
        return self.reachable is None or self.reachable[-1] == len(self.reachable) - 1

    def ids(self) -> torch.Tensor:
        """The reachable ids, int64, ascending."""
        return torch.arange(self.size) if self.reachable is None else torch.tensor(self.reachable)

    def __str__(self) -> str:
        some = "" if self.reachable is None else f", {self.rows} of them reachable"
        return f"0..{self.size - 1}{some} ({self.because})"


@dataclass(frozen=True)
class Effects:
    """What running the graph writes: buffer names and input names."""

    mutated_buffers: frozenset[str] = frozenset()
    mutated_inputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Specialised:
    """Something the capture fixed although the caller may have expected it to vary."""

    input: str
    what: str

    def __str__(self) -> str:
        return f"{self.input}: {self.what}"


@dataclass(frozen=True)
class Program:
    """A captured model.

    Attributes:
        module: the graph; its `get_attr` nodes carry the model's own state names, tied tensors share storage.
        tokens: the domain of each token input, by placeholder name.
        effects: what a run writes.
        specialised: inputs and sizes that the capture fixed.
        dynamic: the symbolic sizes of the inputs and their ranges, as text, for the report.
        constants: tensors the trace found outside the model's registered state (a list, a closure); not its state.
        uncounted: those of them that stand on memory of their own, and so are nobody's bytes here.
        observables: the attributes that are outputs, too, and of how many leaves each is; the last ones, in this order.
    """

    module: GraphModule
    tokens: Mapping[str, Domain]
    effects: Effects = Effects()
    specialised: tuple[Specialised, ...] = ()
    dynamic: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    constants: frozenset[str] = frozenset()
    uncounted: frozenset[str] = frozenset()
    observables: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def graph(self) -> Graph:
        return self.module.graph

    def least_size(self, size: int | torch.SymInt | sympy.Expr) -> int:
        """The smallest value that the capture allows for a symbolic size; 0 for a number or an expression of symbols."""
        span = self.dynamic.get(str(size))
        return int(span.partition("[")[2].partition(",")[0]) if span is not None else 0

    def from_size(self, symbol: sympy.Expr, least: int, why: str) -> Program:
        """The same program, claimed for values of a symbol of `dynamic` from `least` on only, with the reason."""
        _, _, rest = self.dynamic[str(symbol)].partition(",")
        narrowed = {**self.dynamic, str(symbol): f"VR[{least},{rest}"}
        fixed = [
            Specialised(node.name, f"dimension {dim} is at least {least}: {why}")
            for node in self.input_nodes()
            if isinstance(node.meta["val"], torch.Tensor)
            for dim, size in enumerate(node.meta["val"].shape)
            if size_expression(size) == symbol
        ]
        return replace(self, dynamic=MappingProxyType(narrowed), specialised=(*self.specialised, *fixed))

    def text(self) -> str:
        """The graph as readable code: deterministic, byte-identical for identical graphs."""
        return str(self.module.print_readable(print_output=False))

    def input_nodes(self) -> list[Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def copy(self) -> Program:
        """An independent graph over the same tensors: edits to the copy never reach this program.

        A pass works on a copy and must not write tensor storage; new tensors are new state.
        """
        return replace(self, module=graph_module(self.module, copy_graph(self.module.graph)))


def named_state(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Every parameter, then every buffer, by name; a tied one under each of its names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


def graph_module(root: GraphModule, graph: Graph) -> GraphModule:
    """A `GraphModule` of `graph` holding the state of `root` that it reads.

    Buffers keep their persistence; tensors that were plain attributes (constants of the trace) stay out of the
    state dict, as they were out of the model's.
    """
    result = GraphModule(root, graph, class_name="FoldedProgram")
    persistent = root.state_dict(keep_vars=True).keys()
    for name, _ in list(result.named_buffers(remove_duplicate=False)):
        if name not in persistent:
            path, _, leaf = name.rpartition(".")
            mark_non_persistent(result.get_submodule(path), leaf)
    result.train(root.training)
    return result


def own_written_buffers(module: GraphModule, effects: Effects) -> None:
    """Give the module copies of its own of the buffers that a run writes."""
    for name in effects.mutated_buffers:
        path, _, leaf = name.rpartition(".")
        holder = module.get_submodule(path)
        setattr(holder, leaf, getattr(holder, leaf).detach().clone())
