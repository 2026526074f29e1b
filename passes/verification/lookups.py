"""Tables as the graph looks them up: ids go in, and out come the rows that stand for a value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from ...analysis.program import Program
from ..tables.region import Region
from ..tables.runner import RegionRunner
from ..tables.tabulate import Call
from .counterexample import standing_for
from .subgraphs import part


class Lookups:
    """Runs what a candidate put in the place of a region's values.

    Values for which a later pass left no node, or one that needs another input, are not looked at.

    Args:
        candidate: a lowered program.
        region: the region.
        values: those tabulated.
        run: lays values out as rows.
    """

    def __init__(self, candidate: Program, region: Region, values: Sequence[Node], run: RegionRunner) -> None:
        self._inputs = [node.name for node in region.inputs]
        self._run = run
        self._parts: dict[Node, GraphModule] = {}
        for value in values:
            if standing := standing_for(candidate, value.name):
                module = part(candidate, standing[-1], self._inputs)
                if [node.name for node in module.graph.find_nodes(op="placeholder")] == self._inputs:
                    self._parts[value] = module

    def __call__(self, call: Call) -> dict[Node, torch.Tensor]:
        """The rows that answer `call`, [rows, width] for each value.

        Raises:
            RuntimeError, IndexError: the graph cannot look these ids up.
        """
        with torch.no_grad():
            found = {value: module(*(call.ids[name] for name in self._inputs)) for value, module in self._parts.items()}
        return {value: call.answers(self._run.as_rows(value, each, call.ids)) for value, each in found.items()}
