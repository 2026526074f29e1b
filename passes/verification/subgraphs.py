"""Graphs of a program, or of a part of it, that take flat inputs one after the other."""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from ..._torch import copy_graph
from ...analysis.program import GUARDS, Program, graph_module


def flat_graph(program: Program) -> GraphModule:
    """The program's graph with its inputs one after the other, without the input check."""
    graph = copy_graph(program.graph)
    graph.set_codegen(CodeGen())
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target == GUARDS:
            graph.erase_node(node)
    return graph_module(program.module, graph)


def part(program: Program, values: Node | tuple[Node, ...], inputs: Collection[str]) -> GraphModule:
    """What computes `values`, one or a tuple, as a graph of the inputs named."""
    graph = copy_graph(program.graph)
    graph.set_codegen(CodeGen())
    nodes = {node.name: node for node in graph.nodes}
    graph.output_node().args = (map_arg(values, lambda node: nodes[node.name]),)
    for node in reversed(list(graph.nodes)):
        if node.op != "output" and not node.users and node.name not in inputs:
            graph.erase_node(node)
    return graph_module(program.module, graph)
