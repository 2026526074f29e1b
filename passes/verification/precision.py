"""Decisions by scores of low precision: how many fall otherwise when the same program computes in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ...analysis.decisions import Decision
from ...analysis.dependence import analyze_program
from ...analysis.program import Program
from ..tables.runner import RegionRunner
from ..tables.tabulate import built_calls
from .figures import LOW_PRECISION
from .fragility import region_of


def is_low(decision: Decision) -> bool:
    """Whether the score has two bytes."""
    return decision.score.meta["val"].dtype in LOW_PRECISION


def share_in_float32(program: Program, decision: Decision) -> float:
    """The share of tokens for which a token-only decision is another when everything is computed in float32.

    Choices among several are compared as sets.

    Raises:
        RegionError: the decision cannot be run on ids alone.
    """
    facts, wide = analyze_program(program), widened(program)
    region = region_of(program, facts, decision)
    wide_facts = analyze_program(wide)
    twin = region_of(wide, wide_facts, _same(decision, wide))
    run = RegionRunner(region, decision.outcomes)
    other = RegionRunner(twin, [wide_facts.node(node.name) for node in decision.outcomes])
    changed = 0
    for call in built_calls(region, [decision.laid_out_like]):
        pairs = zip(run.rows(call.ids), other.rows(call.ids), strict=True)
        differs = [(call.answers(one).sort(1).values != call.answers(two).sort(1).values).any(1) for one, two in pairs]
        changed += int(torch.stack(differs).any(0).sum())
    return changed / region.domain


def _same(decision: Decision, program: Program) -> Decision:
    nodes = {node.name: node for node in program.graph.nodes}
    return replace(decision, node=nodes[decision.node.name], score=nodes[decision.score.name])


def widened(program: Program) -> Program:
    """The program with its state, and every dtype its operations name, in float32 where it has two bytes."""
    copy = program.copy()
    for node in copy.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), _widened)
        if node.op == "get_attr":
            _widen_state(copy.module, node)
    copy.module.recompile()
    return copy


def _widened(argument: Any) -> Any:
    return torch.float32 if argument in LOW_PRECISION else argument


def _widen_state(module: nn.Module, node: Node) -> None:
    path, _, leaf = str(node.target).rpartition(".")
    holder = module.get_submodule(path)
    tensor = getattr(holder, leaf)
    if isinstance(tensor, torch.Tensor) and tensor.dtype in LOW_PRECISION:
        delattr(holder, leaf)
        holder.register_buffer(leaf, tensor.detach().float(), persistent=False)
