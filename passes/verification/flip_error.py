"""What one other decision does to complete outputs."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from ..._torch import size_expression, static_size
from ...analysis.decisions import Decision
from ...analysis.example import Example
from ...analysis.program import Program
from ..tables.region import Region
from ..tables.runner import Ids, RegionRunner
from ..tables.tabulate import tokens_of, traced_place
from .compare import compare_calls
from .figures import Limits
from .fragility import in_bulk
from .observe import observe_program
from .variants import resized, with_tokens


def flip_error(region: Region, decision: Decision, row: int, count: int, example: Example) -> float | None:
    """The largest absolute difference of complete outputs where the decision of bulk calls is taken in another call.

    Args:
        region: the region the decision depends on.
        decision: a token-only one.
        row: of the region's domain.
        count: rows in the call, which all ask for `row`.
        example: gives the other inputs, cut down or repeated to the sizes of the call.

    Returns:
        None where the program takes no such call.
    """
    ids = traced_place(region)(tokens_of(region, torch.tensor([row]).expand(count)))
    call = _call(region, ids, example)
    values = [*decision.outcomes, *(user for user in decision.node.users if _holds_values(user))]
    run = RegionRunner(region, values)
    computed = run(ids)
    chosen = in_bulk(region, decision, values, torch.tensor([row]))
    given = {}
    for node, value, once in zip(values, computed, chosen, strict=True):
        rows = run.as_rows(node, value, ids)
        given[node.name] = run.from_rows(node, once.expand_as(rows).contiguous(), value, ids)
    reference = observe_program(region.program, call)
    other = observe_program(_with_values(region.program, given), call)
    if reference.error is not None or other.error is not None:
        return None
    return compare_calls(reference, other, Limits()).figures.max_abs


def _holds_values(user: Node) -> bool:
    return user.target is operator.getitem and user.args[1:] == (0,)


def _call(region: Region, ids: Ids, example: Example) -> Example:
    """The example with these ids, its other inputs in their sizes."""
    program = region.program
    for node in region.inputs:
        for traced, size in zip(node.meta["val"].shape, ids[node.name].shape, strict=True):
            if static_size(traced) is None:
                example = resized(program, example, size_expression(traced), size)
    for name, tokens in ids.items():
        example = with_tokens(program, example, name, lambda _, tokens=tokens: tokens) or example  # type: ignore[misc]
    return example


def _with_values(program: Program, given: dict[str, torch.Tensor]) -> Program:
    """The program with some values fixed to what they are in one call."""
    copy = program.copy()
    for node in list(copy.graph.nodes):
        if node.name in given:
            name = f"foldfx_given_{node.name}"
            copy.module.register_buffer(name, given[node.name], persistent=False)
            with copy.graph.inserting_before(node):
                node.replace_all_uses_with(copy.graph.get_attr(name))
    copy.module.recompile()
    return copy
