"""The counterexample of table rows, or of what is decided by them: the call, and the ids whose rows differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from ...analysis.example import Example
from ...analysis.program import Program
from ..tables.region import Region
from ..tables.tabulate import Call, tokens_of
from .counterexample import Counterexample
from .difference import Difference
from .figures import Limits

NAMED = 8
"""Ids a counterexample names at most."""


def counterexample_of_rows(
    what: str,
    region: Region,
    value: Node,
    difference: Difference,
    call: Call | None,
    rows: Sequence[int],
    limits: Limits | None,
    candidate: Program,
) -> Counterexample:
    """One call of a region on which rows differ.

    Args:
        what: what kind of call.
        region, value: what was compared.
        difference: the worst element.
        call: the call; None where none could be made.
        rows: the numbers of the rows that differ; several inputs' combinations are named by them, else ids are.
        limits: those the difference was found with, where they are not the run's.
        candidate: the program that differs.
    """
    inputs = tuple(node.name for node in region.inputs)
    ids = () if call is None else tuple(call.ids[name] for name in inputs)
    tokens = tokens_of(region, torch.tensor(rows[:NAMED], dtype=torch.int64))
    named = tuple(int(each) for each in tokens[inputs[0]]) if len(inputs) == 1 else tuple(rows[:NAMED])
    return Counterexample(what, Example(ids), difference, value.name, named, inputs, limits, candidate)
