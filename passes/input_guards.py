"""What the input check of a result holds calls to, beyond what export checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from .._torch import flatten_inputs
from ..analysis.example import Example
from ..analysis.program import GUARDS, Domain, Program
from ..runtime.guards import InputGuards, Kind, dimensions
from ..runtime.overlap import overlap
from .verification.evidence import Verification
from .verification.variants import in_rank


def install_guards(
    program: Program,
    captured: Program,
    verification: Verification,
    calls: Sequence[Example],
    gradients: str,
    kinds: Mapping[str, frozenset[Kind]],
    layouts: Mapping[str, frozenset[bool]],
) -> None:
    """Let the input check also hold ids to the ranks that were verified, sizes to those captured or compared, inputs that
    were None to it, inputs to the kinds and layouts compared, what is written to memory of its own, and calls to no
    gradients where these make a difference.

    Args:
        program: a rewritten program, whose graph need not know the structure of calls any more.
        captured: what it was.
        verification: what was verified of it.
        calls: the examples compared.
        gradients: what the original does otherwise with gradients on, or "".
        kinds: those of each input that was not None on which the program was compared.
        layouts: whether each input that is a tensor is contiguous where the program does as the original.
    """
    places = {node.name: place for place, node in enumerate(program.input_nodes())}
    ranks = {name: (places[name], frozenset(admitted)) for name, admitted in verification.ranks.items()}
    reachable = {name: (places[name], _mask(domain)) for name, domain in program.tokens.items() if domain.reachable is not None}
    absent = [(name, places[name]) for name in places if program.input_nodes()[places[name]].meta["val"] is None]
    sizes = program.module.get_submodule(GUARDS)
    given = [flatten_inputs(captured.module, call.args, dict(call.kwargs)) for call in calls]
    least = _least_sizes(captured, given)
    admitted = {name: (places[name], each) for name, each in kinds.items()}
    apart = _apart(captured, given)
    contiguous = [(name, places[name], True in each) for name, each in layouts.items() if len(each) == 1]
    together = _together(captured, calls, given, verification.ranks)
    guards = InputGuards(sizes, ranks, reachable, absent, least, gradients, admitted, apart, contiguous, together)
    program.module.add_submodule(GUARDS, guards)


def _apart(captured: Program, given: Sequence[Sequence[Any]]) -> list[tuple[str, int, str, int]]:
    """Every input that is written, and each other tensor whose memory was not part of it in a call compared."""
    tensors = [(place, node) for place, node in enumerate(captured.input_nodes()) if isinstance(node.meta["val"], torch.Tensor)]
    return [
        (node.name, place, other.name, at)
        for place, node in tensors
        for at, other in tensors
        if node.name in captured.effects.mutated_inputs and at != place
        if not any(overlap(each[place], each[at]) for each in given)
    ]


def _together(
    captured: Program, calls: Sequence[Example], given: Sequence[Sequence[Any]], ranks: Mapping[str, Collection[int]]
) -> set[tuple[int, ...]]:
    """The numbers of dimensions of all inputs at capture, in the calls compared, and where ids were tried in another rank."""
    traced = [node.meta["val"] for node in captured.input_nodes()]
    tried = [
        flatten_inputs(captured.module, probe.args, dict(probe.kwargs))
        for node in captured.input_nodes()
        if node.name in ranks
        for rank in set(ranks[node.name]) - {node.meta["val"].dim()}
        for call in calls
        for probe in in_rank(captured, call, node.name, rank)
    ]
    return {dimensions(inputs) for inputs in (traced, *given, *tried)}


def _least_sizes(captured: Program, given: Sequence[Sequence[Any]]) -> list[tuple[str, int, int, int, int]]:
    """Of every size that neither the capture nor a call compared follows down to 0.

    Returns:
        The input, its place and rank, the dimension and the least size of each.
    """
    found = []
    for place, node in enumerate(captured.input_nodes()):
        shape = node.meta["val"].shape if isinstance(node.meta["val"], torch.Tensor) else ()
        compared = [each[place].shape for each in given if isinstance(each[place], torch.Tensor)]
        for dim, size in enumerate(shape):
            if least := min([captured.least_size(size), *(each[dim] for each in compared if len(each) == len(shape))]):
                found.append((node.name, place, len(shape), dim, least))
    return found


def _mask(domain: Domain) -> torch.Tensor:
    """Which ids are reachable, bool [V]."""
    mask = torch.zeros(domain.size, dtype=torch.bool)
    mask[domain.ids()] = True
    return mask
