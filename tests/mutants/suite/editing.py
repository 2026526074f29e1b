"""What mutants are made of: an edit of the captured graph, or an honest fold whose result is spoiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

import foldfx
from foldfx.passes import FoldRoutes, FoldTokens, Fuel, Outcome, Pass, PassContext, PassResult, Status
from foldfx.passes.builder import Builder
from foldfx.passes.tables.encode import Pack

aten = torch.ops.aten


class Edit:
    """A pass that claims to have improved the graph. Mutants say what they do to it in `change`.

    Attributes:
        model: the name of the model it runs on.
        check: the name of the check that must reject it.
        harmless: whether the state then is as it was before.
        name: the file's.
    """

    model: ClassVar[str] = "reader"
    check: ClassVar[str]
    harmless: ClassVar[bool] = True
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]

    def change(self, program: foldfx.Program) -> None:
        raise NotImplementedError

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        self.change(program)
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "the graph", "it looked better"),))


class SpoiledFold(Edit):
    """`fold_tokens` as it is, and then `spoil` of the table of float values over `ids`, or else `change`.

    Attributes:
        dtype: of the table spoiled.
    """

    check: ClassVar[str] = "tables, as built"
    dtype: ClassVar[torch.dtype] = torch.float32

    def fold(self) -> Pass:
        return FoldTokens()

    def left_out(self) -> dict[str, str]:
        """Rewrites the fold is told that they are wrong."""
        return {}

    def spoil(self, table: Tensor) -> Tensor:
        """The table, or a wrong one made of it."""
        return table

    def change(self, program: foldfx.Program) -> None:
        """Edits of the folded graph."""

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        result = self.fold().run(program, replace(context, fuel=Fuel(None, self.left_out())))
        for pack in packs(result):
            if pack.state.startswith("foldfx_tables.ids") and pack.parts[0].value.meta["val"].dtype == self.dtype:
                assign(result.program, pack.state, self.spoil(state(result.program, pack.state).clone()))
        self.change(result.program)
        result.program.module.recompile()
        return result


class SpoiledRoutes(SpoiledFold):
    """`fold_routes`, and then `spoil` of the table of chosen experts over `ids`, or of the weights where `dtype` is float."""

    model: ClassVar[str] = "router"
    dtype: ClassVar[torch.dtype] = torch.int64

    def fold(self) -> Pass:
        return FoldRoutes()


def packs(result: PassResult) -> Iterable[Pack]:
    return [pack for rewrite in result.rewrites for tables in rewrite.tables for pack in tables.packs]


def state(program: foldfx.Program, name: str) -> Tensor:
    held: Tensor = attrgetter(name)(program.module)
    return held


def assign(program: foldfx.Program, name: str, value: Tensor) -> None:
    """Let the program hold other values under a name; nothing is written in place."""
    path, _, leaf = name.rpartition(".")
    setattr(program.module.get_submodule(path), leaf, value)


def calls(program: foldfx.Program, target: Any) -> list[Node]:
    """Calls of an operation, in order."""
    return list(program.graph.find_nodes(op="call_function", target=target))


def read(program: foldfx.Program, name: str) -> Node:
    """The read of a tensor of the state."""
    (node,) = program.graph.find_nodes(op="get_attr", target=name)
    return node  # type: ignore[no-any-return]


def add(program: foldfx.Program, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new call, the last one of the graph."""
    anchor = next(arg for arg in (*args, *program.graph.nodes) if isinstance(arg, Node) and arg.meta.get("val") is not None)
    node = Builder(program.module, anchor, "mutant").call(target, *args, **kwargs)
    program.graph.output_node().prepend(node)
    return node


def add_state(program: foldfx.Program, name: str, value: Tensor) -> Node:
    """New state, and the read of it, the last node of the graph."""
    node = Builder(program.module, program.input_nodes()[0], "mutant").state(name, value)
    program.graph.output_node().prepend(node)
    return node


def _tree(program: foldfx.Program) -> Any:
    spec = program.graph._codegen.pytree_info.out_spec  # type: ignore[attr-defined]
    return spec.unflatten(list(program.graph.output_node().args[0]))  # type: ignore[arg-type]


def returned(program: foldfx.Program, leaf: str | int) -> Node:
    """The value returned as one of the outputs."""
    node = _tree(program)[leaf]
    assert isinstance(node, Node)
    return node


def answer(program: foldfx.Program, leaf: str | int, value: Node) -> None:
    """Return another value as that output."""
    tree = _tree(program)
    places = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    output = program.graph.output_node()
    leaves = list(output.args[0])  # type: ignore[arg-type]
    leaves[places.index(leaf)] = value
    output.args = (tuple(leaves),)


def clone(program: foldfx.Program, leaf: str | int) -> None:
    """A change that does no harm: return a copy of an output."""
    answer(program, leaf, add(program, aten.clone.default, returned(program, leaf)))
