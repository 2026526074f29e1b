"""Probes of decisions: margins over every token, tokens and calls near a tie, and what another choice would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

from ..analysis.decisions import Decision, find_decisions
from ..analysis.example import Example
from ..analysis.facts import Facts
from ..analysis.program import Program
from .tables.region import RegionError, ancestors
from .tables.tabulate import Progress
from .verification.flip_error import flip_error
from .verification.fragility import Fragility, fragility, region_of
from .verification.near_ties import NearTies, NearTieSearch
from .verification.observe import observe_program
from .verification.precision import is_low, share_in_float32

CONTEXTS = 1024
"""Contexts the search for near ties evaluates, unless the user says otherwise."""

COMPARED = 8
"""Contexts of each decision, the nearest to a tie, on which complete outputs are compared."""

COMPARED_IN_ALL = 32
"""Contexts of all decisions together: the nearest of each first."""


@dataclass(frozen=True)
class Probes:
    """What was found out about the decisions of one program.

    Attributes:
        fragilities: of token-only decisions.
        near_ties: of contextual ones.
        shares: of token-only decisions by low-precision scores, by node name: the share of tokens for which float32
            decides otherwise.
        examples: calls near a tie, for the verifier.
        budget: contexts the search was allowed.
    """

    fragilities: tuple[Fragility, ...] = ()
    near_ties: tuple[NearTies, ...] = ()
    shares: dict[str, float] | None = None
    examples: tuple[Example, ...] = ()
    budget: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable, by node name."""
        return {
            **{each.decision.node.name: self._token_only(each) for each in self.fragilities},
            **{each.decision.node.name: self._contextual(each) for each in self.near_ties},
        }

    def _token_only(self, found: Fragility) -> dict[str, Any]:
        return {
            "margins": found.margins.to_dict(),
            "histogram": str(found.margins),
            "deviation": found.deviation,
            "floor": found.floor,
            "fragile": found.fragile,
            "tokens": [{"token": token, "margin": margin} for token, margin in found.tokens],
            "flips": [
                {
                    "token": flip.token,
                    "margin": flip.margin,
                    "counts": list(flip.counts),
                    "order_only": flip.order_only,
                    "error": flip.error,
                }
                for flip in found.flips
            ],
            "float32_share": (self.shares or {}).get(found.decision.node.name),
            "note": found.note,
        }

    def _contextual(self, found: NearTies) -> dict[str, Any]:
        return {
            "margins": found.margins.to_dict(),
            "histogram": str(found.margins),
            "deviation": found.deviation,
            "contexts": found.contexts,
            "space": found.space,
            "budget": self.budget,
            "nearest": [{"margin": each.margin, "tokens": list(each.tokens)} for each in found.nearest[:COMPARED]],
            "note": found.note,
        }


def probe_decisions(program: Program, facts: Facts, examples: Sequence[Example], contexts: int, progress: Progress) -> Probes:
    """Enumerate token-only decisions, search near ties of the others.

    Args:
        program: the captured program.
        facts: its dependence facts.
        examples: calls it takes.
        contexts: the budget of the search; 0: none.
        progress: called during long work.
    """
    decisions = [each for each in find_decisions(program, facts) if each.kind != "draw"]
    token_only = [each for each in decisions if each.token_only]
    contextual = [each for each in decisions if not each.token_only and _reads_tokens(program, each)]
    fragilities = [_with_errors(program, facts, fragility(program, facts, each, progress), examples) for each in token_only]
    shares: dict[str, float] = {}
    for place, each in enumerate(fragilities):
        if is_low(each.decision) and not each.note:
            try:
                shares[each.decision.node.name] = share_in_float32(program, each.decision)
            except RegionError as error:
                fragilities[place] = replace(each, note=f"what float32 would choose is not known: {error}")
    near = [NearTies(each, note=each.without_margin) for each in contextual if each.without_margin]
    near_examples: list[Example] = []
    if contexts and (searched := [each for each in contextual if not each.without_margin]):
        search = NearTieSearch(program, searched, examples[0], contexts, progress=progress)
        near += search.results()
        ranked = zip_longest(*(found.nearest[:COMPARED] for found in near))
        tried = dict.fromkeys(context.tokens for rank in ranked for context in rank if context is not None)
        calls = [search.example(each) for each in islice(tried, COMPARED_IN_ALL)]
        near_examples = [call for call in calls if observe_program(program, call).error is None]
    return Probes(tuple(fragilities), tuple(near), shares, tuple(near_examples), contexts)


def _reads_tokens(program: Program, decision: Decision) -> bool:
    return any(node.name in program.tokens for node in ancestors(decision.operands))


def _with_errors(program: Program, facts: Facts, found: Fragility, examples: Sequence[Example]) -> Fragility:
    """The largest difference of complete outputs that each flip makes, over the examples' other inputs."""
    if not found.flips:
        return found
    region = region_of(program, facts, found.decision)
    flips = []
    for flip in found.flips:
        calls = [flip_error(region, found.decision, flip.row, flip.counts[0], each) for each in examples]
        flips.append(replace(flip, error=max((error for error in calls if error is not None), default=None)))
    return replace(found, flips=tuple(flips))
