"""What the input check of a result holds calls to, beyond what export checks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._torch import flatten_inputs
from ..analysis.example import Example
from ..analysis.program import GUARDS, Domain, Program
from ..runtime.guards import InputGuards
from .verification.evidence import Verification


def install_guards(
    program: Program, captured: Program, verification: Verification, calls: Sequence[Example], gradients: str
) -> None:
    """Let the input check also hold ids to the ranks that were verified, sizes to those captured or compared, inputs that
    were None to it, and calls to no gradients where these make a difference.

    Args:
        program: a rewritten program, whose graph need not know the structure of calls any more.
        captured: what it was.
        verification: what was verified of it.
        calls: the examples compared.
        gradients: what the original does otherwise with gradients on, or "".
    """
    places = {node.name: place for place, node in enumerate(program.input_nodes())}
    ranks = {name: (places[name], frozenset(admitted)) for name, admitted in verification.ranks.items()}
    reachable = {name: (places[name], _mask(domain)) for name, domain in program.tokens.items() if domain.reachable is not None}
    absent = [(name, places[name]) for name in places if program.input_nodes()[places[name]].meta["val"] is None]
    sizes = program.module.get_submodule(GUARDS)
    least = _least_sizes(captured, calls)
    program.module.add_submodule(GUARDS, InputGuards(sizes, ranks, reachable, absent, least, gradients))


def _least_sizes(captured: Program, calls: Sequence[Example]) -> list[tuple[str, int, int, int, int]]:
    """Of every size that neither the capture nor a call compared follows down to 0.

    Returns:
        The input, its place and rank, the dimension and the least size of each.
    """
    given = [flatten_inputs(captured.module, call.args, dict(call.kwargs)) for call in calls]
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
