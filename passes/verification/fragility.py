"""Token-only decisions, enumerated: which tokens are so near a tie that the number of rows in a call may decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from ...analysis.decisions import Decision
from ...analysis.facts import Facts
from ...analysis.program import Program
from ..tables.region import Region, RegionError
from ..tables.runner import RegionRunner
from ..tables.tabulate import Call, Progress, built_calls, tokens_of
from .layout import Layout
from .margins import Margins
from .row_counts import COUNTS, calls_along, fragile_calls, near_ties_layout, outers
from .row_margins import RowMargins

SAMPLE, CALLS, CALLS_ALONG = 512, 16, 2
"""Tokens whose scores are compared between calls of different row counts; calls of each row count, and along another axis,
at most."""

LISTED = 64
"""Fragile tokens that are run at every row count, those with the smallest margins."""


@dataclass(frozen=True)
class Flip:
    """A token for which a decision falls otherwise than in bulk calls.

    Attributes:
        row: of the domain.
        token: its id; the row for several inputs.
        margin: its distance to another choice or order in bulk.
        counts: rows in the calls where it falls otherwise.
        order_only: the same is chosen everywhere, in another order.
        error: the largest difference of complete outputs if the decision of bulk calls is taken in a call of that many
            rows; None where there is no such call of the whole program.
    """

    row: int
    token: int
    margin: float
    counts: tuple[int, ...]
    order_only: bool
    error: float | None = None


@dataclass(frozen=True)
class Fragility:
    """A token-only decision over its whole domain.

    Attributes:
        decision: the decision.
        margins: of every token, in the calls tables are built with.
        by_token: the same one by one, [rows of the domain], float64.
        rows: of the domain, those of `tokens`, 1-D.
        inputs: names of the token inputs that the domain is of.
        deviation: the largest difference of a score, or half that of a margin, between these calls and calls of other row
            counts, of a sample.
        fragile: how many tokens are within `floor` of another choice, or of another order of what a top-k chooses.
        tokens: those of them nearest to one, with that distance.
        flips: those of `tokens` for which the decision falls otherwise at some row count.
        note: why less is known, or "".
    """

    decision: Decision
    margins: Margins = field(default_factory=Margins)
    deviation: float = 0.0
    fragile: int = 0
    tokens: tuple[tuple[int, float], ...] = ()
    flips: tuple[Flip, ...] = ()
    note: str = ""
    by_token: torch.Tensor | None = field(default=None, repr=False, compare=False)
    rows: torch.Tensor | None = field(default=None, repr=False, compare=False)
    inputs: frozenset[str] = frozenset()

    @property
    def floor(self) -> float:
        """The noise floor of margins: twice the deviation, as two scores may deviate."""
        return 2 * self.deviation


def fragility(program: Program, facts: Facts, decision: Decision, progress: Progress) -> Fragility:
    """Enumerate a token-only decision, and run it for fragile tokens in calls of every number of rows in `COUNTS`."""
    if decision.without_margin:
        return Fragility(decision, note=decision.without_margin)
    try:
        return _Enumeration(region_of(program, facts, decision), decision, progress).result()
    except RegionError as error:
        return Fragility(decision, note=f"its margins are not known: {error}")


def fragile_layouts(region: Region, decided: Iterable[Node], fragilities: Iterable[Fragility]) -> list[Layout]:
    """One layout for the fragile tokens of those of the decisions `decided` that are over the region's inputs, or none."""
    names, inputs = {node.name for node in decided}, {node.name for node in region.inputs}
    found = [
        each.rows
        for each in fragilities
        if each.rows is not None and each.decision.node.name in names and each.inputs == inputs and each.rows.numel()
    ]
    return [near_ties_layout(region, torch.unique(torch.cat(found)))] if found else []


def region_of(program: Program, facts: Facts, decision: Decision) -> Region:
    """The region of the token inputs that a decision depends on."""
    inputs = tuple(node for node in program.input_nodes() if node.name in facts[decision.node].tokens)
    return Region(program, facts, inputs)


class _Enumeration:
    """One decision over its domain."""

    def __init__(self, region: Region, decision: Decision, progress: Progress) -> None:
        self._region = region
        self._decision = decision
        self._margins = RowMargins(region, [decision])
        self._outcomes = RegionRunner(region, decision.outcomes)
        self._progress = progress

    def result(self) -> Fragility:
        domain = self._region.domain
        sample = torch.randperm(domain, generator=torch.Generator().manual_seed(0))[:SAMPLE].sort().values
        margins, near = torch.empty(domain, dtype=torch.float64), torch.empty(domain, dtype=torch.float64)
        sampled: list[torch.Tensor] = []
        for call in built_calls(self._region, [self._decision.laid_out_like]):
            found = self._margins(call)[self._decision]
            margins[call.rows], near[call.rows] = found.margin, found.rank_margin
            inside = sample[(sample >= call.rows[0]) & (sample <= call.rows[-1])] - call.rows[0]
            sampled.append(found.deviating[inside])
            self._progress("enumerating decisions", int(call.rows[-1]) + 1, domain)
        deviation = self._deviation(sample, torch.cat(sampled))
        low = (near <= 2 * deviation).nonzero().reshape(-1)
        low = low[near[low].argsort(stable=True)]
        listed = low[:LISTED]
        tokens = tuple(zip(self._ids(listed), near[listed].tolist(), strict=True))
        flips = self._flips(listed, near)
        inputs = frozenset(node.name for node in self._region.inputs)
        return Fragility(
            self._decision,
            Margins.of(margins),
            deviation,
            low.numel(),
            tokens,
            tuple(flips),
            by_token=margins,
            rows=listed,
            inputs=inputs,
        )

    def _deviation(self, sample: torch.Tensor, bulk: torch.Tensor) -> float:
        """The largest finite difference, over calls of every number of rows, along every axis."""
        worst = 0.0
        for count in COUNTS:
            for outer in outers(self._region, count):
                seen = 0
                calls = CALLS if outer == 1 else CALLS_ALONG
                for call in calls_along(self._region, sample[: calls * count], count, outer):
                    found = self._margins(call)[self._decision].deviating
                    apart = (found - bulk[seen : seen + found.shape[0]]).abs()
                    worst = max(worst, float(apart.nan_to_num(nan=0.0, posinf=0.0).max()))
                    seen += found.shape[0]
        return worst

    def _ids(self, rows: torch.Tensor) -> list[int]:
        return rows.tolist() if len(self._region.inputs) > 1 else next(iter(tokens_of(self._region, rows).values())).tolist()

    def _flips(self, rows: torch.Tensor, near: torch.Tensor) -> list[Flip]:
        if not rows.numel():
            return []
        bulk = in_bulk(self._region, self._decision, self._decision.outcomes, rows)
        other: dict[int, dict[int, bool]] = {}
        for done, count in enumerate(COUNTS, 1):
            for number, same in self._otherwise(rows, bulk, count):
                other.setdefault(number, {}).setdefault(count, True)
                other[number][count] &= same
            self._progress("running fragile tokens", done, len(COUNTS))
        tokens = self._ids(rows)
        return [
            Flip(int(rows[number]), tokens[number], float(near[rows[number]]), tuple(counts), all(counts.values()))
            for number, counts in sorted(other.items())
        ]

    def _otherwise(self, rows: torch.Tensor, bulk: Sequence[torch.Tensor], count: int) -> Iterator[tuple[int, bool]]:
        """Which of `rows` fall otherwise than in bulk in calls of `count` rows, and whether only in their order."""
        for call, answered in fragile_calls(self._region, rows, count):
            yield from self._differing(call, answered, bulk)

    def _differing(self, call: Call, asked: torch.Tensor, bulk: Sequence[torch.Tensor]) -> Iterator[tuple[int, bool]]:
        for once, computed in zip(bulk, self._outcomes.rows(call.ids), strict=True):
            found, expected = call.answers(computed), once[asked]
            for at in (found != expected).any(1).nonzero().reshape(-1).tolist():
                yield int(asked[at]), bool((found[at].sort().values == expected[at].sort().values).all())


def in_bulk(region: Region, decision: Decision, nodes: Sequence[Node], rows: torch.Tensor) -> list[torch.Tensor]:
    """Values of a region for some rows of the domain, [rows, width] each, in the calls tables are built with."""
    run = RegionRunner(region, nodes)
    parts: list[dict[int, torch.Tensor]] = [{} for _ in nodes]
    for call in built_calls(region, [decision.laid_out_like]):
        inside = rows[(rows >= call.rows[0]) & (rows <= call.rows[-1])]
        if inside.numel():
            for part, found in zip(parts, run.rows(call.ids), strict=True):
                part |= {row: call.answers(found)[row - int(call.rows[0])] for row in inside.tolist()}
    return [torch.stack([part[row] for row in rows.tolist()]) for part in parts]
