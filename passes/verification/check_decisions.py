"""Decisions computed from tables: for every row of the domain they must fall as in the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.fx import Node

from ...analysis.decisions import Decision, find_decisions
from ...analysis.program import Program
from ..rewrite import Rewrite, Tables
from ..tables.region import RegionError, ancestors
from ..tables.runner import RegionRunner
from ..tables.tabulate import Call, Progress, built_calls
from .counterexample import Counterexample
from .difference import Difference, worst_element
from .evidence import LayoutEvidence
from .figures import EXACT, Figures, figures_of
from .fragility import Fragility, fragile_layouts
from .layout import Layout
from .layouts import layouts_of
from .row_margins import RowMargins
from .rows_that_differ import counterexample_of_rows
from .sample import sampled


def check_decisions(
    rewrite: Rewrite,
    candidate: Program,
    progress: Progress,
    time_budget: float | None = None,
    fragilities: Sequence[Fragility] = (),
) -> tuple[list[LayoutEvidence], list[Counterexample]]:
    """Run what stands between the tables and every token-only decision behind them, on tables and on computed values.

    A table within the limits may still be on the other side of a near tie. Chosen indices, masks and rounded values are
    therefore compared exactly, for every id and in every layout of `layouts_of`; nothing is assumed about margins.

    Args:
        rewrite: the rewrite.
        candidate: a program that has it.
        progress: called after each call of the region.
        time_budget: as in `check_tables`.
        fragilities: of decisions, whose fragile tokens are asked for in calls of every number of rows.

    Returns:
        Evidence by decision and layout, and a counterexample for each decision and layout in which one falls otherwise.
    """
    evidence: list[LayoutEvidence] = []
    failures: list[Counterexample] = []
    for tables in rewrite.tables:
        outcomes = _outcomes_behind(tables)
        if not outcomes:
            continue
        check = _DecisionCheck(tables, candidate.module, outcomes, progress)
        near = fragile_layouts(tables.region, [each.node for each in outcomes.values()], fragilities)
        for layout in map(tables.spared, [*layouts_of(tables.region, check.computed), *tables.class_layouts(), *near]):
            if layout.name != "empty":
                found, wrong = check(layout, time_budget, candidate)
                evidence += found
                failures += wrong
    return evidence, failures


def _outcomes_behind(tables: Tables) -> dict[Node, Decision]:
    """The discrete values of token-only decisions that are computed from the tables and, if anything else, ids."""
    region, values = tables.region, set(tables.values)
    found = {}
    for decision in find_decisions(region.program, region.facts):
        for node in decision.outcomes if decision.foldable else ():
            behind = ancestors([node])
            if node not in values and region.contains(node) and behind & values and region.facts[node].rows is not None:
                found[node] = decision
    return found


class _DecisionCheck:
    """Compares decisions over one index, layout by layout.

    Attributes:
        computed: evaluates the tabulated values and the decisions, as the original does.
    """

    def __init__(self, tables: Tables, module: nn.Module, outcomes: Mapping[Node, Decision], progress: Progress) -> None:
        self.computed = RegionRunner(tables.region, [*tables.values, *outcomes])
        self._looked_up = RegionRunner(tables.region, list(outcomes), given=tables.values)
        self._tables = tables
        self._module = module
        self._outcomes = list(outcomes)
        self._decisions = list(dict.fromkeys(outcomes.values()))
        self._progress = progress

    def __call__(
        self, layout: Layout, time_budget: float | None, candidate: Program
    ) -> tuple[list[LayoutEvidence], list[Counterexample]]:
        region = self._tables.region
        if time_budget is not None and layout.single:
            layout = sampled(layout, self.computed, time_budget, self._fragility())
        worst = {node: Figures() for node in self._outcomes}
        wrong: dict[Node, Counterexample] = {}
        seen = 0
        try:
            for call in layout.calls():
                for node, (expected, found) in self._both(call, layout).items():
                    figures = figures_of(expected, found)
                    worst[node] = worst[node].worst(figures)
                    if not figures.exact and node not in wrong:
                        wrong[node] = self._counterexample(node, layout, call, expected, found, candidate)
                seen += call.rows.numel()
                self._progress(f"checking decisions, {layout.name}", seen, layout.rows.numel())
        except RegionError as error:
            layout = replace(layout, note=str(error))
        evidence = [
            LayoutEvidence(
                node.name,
                layout.name,
                layout.shape,
                layout.covered(seen, region.domain),
                region.domain,
                figures,
                layout.note,
                "decision",
            )
            for node, figures in worst.items()
        ]
        return evidence, list(wrong.values())

    def _fragility(self) -> torch.Tensor:
        """For each row how near its nearest decision is to another outcome, 1 / margin, by one bulk evaluation."""
        region = self._tables.region
        fragility = torch.zeros(region.domain, dtype=torch.float64)
        plain = [each for each in self._decisions if not each.without_margin and region.contains(each.laid_out_like)]
        margins = RowMargins(region, plain)
        for call in built_calls(region, [each.laid_out_like for each in plain]) if plain else ():
            for found in margins(call).values():
                fragility[call.rows] = torch.maximum(fragility[call.rows], 1 / found.margin.clamp_min(1e-300))
        return fragility

    def _both(self, call: Call, layout: Layout) -> dict[Node, tuple[torch.Tensor, torch.Tensor]]:
        """Each decision for the rows of a call, as the original computes it and as it follows from the tables."""
        values = self.computed(call.ids)
        stored = self._tables.decode(self._module, [call], layout.number if layout.as_built else None)
        given = {}
        for node, value in zip(self._tables.values, values, strict=False):
            rows = self.computed.as_rows(node, value, call.ids).clone()
            places = slice(call.rows.numel()) if call.places is None else call.places
            rows[places] = stored[node]
            given[node] = self.computed.from_rows(node, rows, value, call.ids)
        followed = self._looked_up(call.ids, given)
        originals = values[len(self._tables.values) :]
        return {
            node: (
                call.answers(self.computed.as_rows(node, one, call.ids)),
                call.answers(self._looked_up.as_rows(node, other, call.ids)),
            )
            for node, one, other in zip(self._outcomes, originals, followed, strict=True)
        }

    def _counterexample(
        self, node: Node, layout: Layout, call: Call, expected: torch.Tensor, found: torch.Tensor, candidate: Program
    ) -> Counterexample:
        """The first row of a call for which a decision falls otherwise, and the ids of all such rows."""
        differs = (expected != found).any(1).nonzero().reshape(-1)
        rows = call.rows[differs]
        index, one, other = worst_element(expected[differs[0]], found[differs[0]])
        what = f"another decision than the original's, for {rows.numel()} of {call.rows.numel()} ids in this call"
        difference = Difference(f"decision {node.name}, row {int(rows[0])}", what, None, index, one, other)
        text = f"decision {node.name}, layout {layout.name} {layout.shape}"
        return counterexample_of_rows(text, self._tables.region, node, difference, call, rows.tolist(), EXACT, candidate)
