"""Every table against its region: each row of the domain, in several layouts of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import Node

from ...analysis.program import Program
from ..rewrite import Rewrite, Tables
from ..tables.region import RegionError, ancestors
from ..tables.runner import RegionRunner
from ..tables.tabulate import BLOCK, Call, Progress
from .bits import bits_of, same_bits
from .compare import compare_trees
from .counterexample import Counterexample
from .difference import Difference, worst_element
from .evidence import LayoutEvidence
from .figures import EXACT, Figures, Limits, exceeds, figures_of_rows
from .fragility import Fragility, fragile_layouts
from .layout import Layout
from .layouts import as_built_layout, layouts_of
from .lookups import Lookups
from .rows_that_differ import counterexample_of_rows
from .sample import sampled


def check_tables(
    rewrite: Rewrite,
    candidate: Program,
    limits: Limits,
    progress: Progress,
    time_budget: float | None = None,
    fragilities: Sequence[Fragility] = (),
) -> tuple[list[LayoutEvidence], list[Counterexample]]:
    """Compare each table of `rewrite` in `candidate` with the region it stands for.

    Args:
        rewrite: the rewrite.
        candidate: a program that has it.
        limits: for float values; called as they were built, table and region must be equal.
        progress: called after each block of rows.
        time_budget: seconds for each layout of calls of one row; beyond them a stratified sample is called, and the rows that
            deviated most in the bulk layouts. None: every row.
        fragilities: of decisions, whose fragile tokens are asked for in calls of every number of rows, where a table
            holds what they decide.

    Returns:
        The evidence, and a counterexample for each table and layout beyond the limits.
    """
    evidence: list[LayoutEvidence] = []
    failures: list[Counterexample] = []
    for tables in rewrite.tables:
        check = TableCheck(tables, candidate.module, limits, progress)
        lookups = Lookups(candidate, tables.region, tables.values, check.run)
        near = fragile_layouts(tables.region, ancestors(tables.values), fragilities)
        for each in map(tables.spared, [*layouts_of(tables.region, check.run), *tables.class_layouts(), *near]):
            bounded = time_budget is not None and each.single
            layout = sampled(each, check.run, time_budget, check.deviation) if bounded and time_budget else each
            try:
                found, wrong = check(layout)
            except RegionError as error:
                found, wrong = check.cannot(layout, error)
            evidence += found
            failures += [each.of(candidate, tables, layout) for each in wrong]
        for layout in [as_built_layout(tables.region, check.run), *tables.end_layouts()]:
            failures += [each.of(candidate, tables, layout) for each in check.looked_up(layout, lookups)]
    return evidence, failures


@dataclass(frozen=True)
class _Wrong:
    """A call on which a table is beyond the limits."""

    value: Node
    difference: Difference
    call: Call | None = None
    rows: Sequence[int] = ()

    def of(self, candidate: Program, tables: Tables, layout: Layout) -> Counterexample:
        what = f"table of {self.value.name}, layout {layout.name} {layout.shape}"
        limits = EXACT if layout.as_built else None
        return counterexample_of_rows(what, tables.region, self.value, self.difference, self.call, self.rows, limits, candidate)


class TableCheck:
    """Compares the tables over one index with their region, layout by layout.

    Args:
        tables: the tables.
        module: the lowered candidate, which holds them.
        limits: for float values.
        progress: called after each block of rows.

    Attributes:
        run: evaluates the region.
        deviation: the largest absolute difference of each row in any layout so far, [domain], float32.
    """

    def __init__(self, tables: Tables, module: nn.Module, limits: Limits, progress: Progress) -> None:
        self.run = RegionRunner(tables.region, tables.values)
        self.deviation = torch.zeros(tables.region.domain)
        self._tables = tables
        self._module = module
        self._limits = limits
        self._progress = progress

    def __call__(self, layout: Layout) -> tuple[list[LayoutEvidence], list[_Wrong]]:
        """The evidence for each table in one layout, and the first wrong call of each that has one.

        Thousands of calls of one row end with the block in which one is wrong.

        Raises:
            RegionError: the region does not take such calls.
        """
        worst = {node: Figures() for node in self._tables.values}
        wrong: dict[Node, _Wrong] = {}
        seen = 0
        for block, computed in self._blocks(layout):
            rows = torch.cat([call.rows for call in block])
            stored = self._tables.decode(self._module, block, layout.number if layout.as_built else None)
            for node, expected in zip(self._tables.values, computed, strict=True):
                figures = figures_of_rows(expected, stored[node])
                worst[node] = worst[node].worst(figures)
                if figures.bitwise or node in wrong:
                    continue
                self._note(rows, expected, stored[node])
                if (found := self._judge(layout, block, node, expected, stored[node], figures)) is not None:
                    wrong[node] = found
            seen += rows.numel()
            self._progress(f"checking tables, {layout.name}", seen, layout.rows.numel())
            if wrong and layout.single:
                break
        evidence = [self._evidence(layout, node, seen, worst[node], layout.note) for node in worst]
        return evidence, list(wrong.values())

    def looked_up(self, layout: Layout, lookups: Lookups) -> list[_Wrong]:
        """The first call of each value for which the graph finds other rows than the tables hold."""
        wrong: dict[Node, _Wrong] = {}
        for call in layout.calls():
            stored = self._tables.decode(self._module, [call])
            for node, found in lookups(call).items():
                if node not in wrong and not same_bits(stored[node], found):
                    rows = call.rows[(bits_of(stored[node]) != bits_of(found)).any(1)].tolist()
                    what = "the graph looks up other rows than the table has for these ids"
                    wrong[node] = _Wrong(node, Difference(f"table row {rows[0]}", what), call, rows)
        return list(wrong.values())

    def cannot(self, layout: Layout, error: RegionError) -> tuple[list[LayoutEvidence], list[_Wrong]]:
        """What follows from a layout the region does not take: nothing where no ids are asked for, else it is wrong."""
        if layout.name == "empty":
            return [self._evidence(layout, node, 0, Figures(), str(error)) for node in self._tables.values], []
        return [], [_Wrong(self._tables.values[0], Difference("", str(error)))]

    def _evidence(self, layout: Layout, node: Node, seen: int, figures: Figures, note: str) -> LayoutEvidence:
        domain = self._tables.region.domain
        return LayoutEvidence(node.name, layout.name, layout.shape, layout.covered(seen, domain), domain, figures, note)

    def _blocks(self, layout: Layout) -> Iterator[tuple[list[Call], list[torch.Tensor]]]:
        """Many calls at a time, with the rows they compute: comparing is then cheap beside calling."""
        block: list[Call] = []
        computed: list[list[torch.Tensor]] = []
        count = 0
        for call in layout.calls():
            block.append(call)
            whole = call.count != 1 or len(block) == 1
            computed.append([call.answers(rows) for rows in self.run.rows(call.ids)] if whole else self.run(call.ids))
            count += call.rows.numel()
            if count >= BLOCK:
                yield block, self._joined(computed)
                block, computed, count = [], [], 0
        if block:
            yield block, self._joined(computed)

    def _joined(self, computed: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Each value's rows of all calls; of calls of one row, whatever their dimensions, the elements are in order."""
        if len(computed) == 1:
            return computed[0]
        widths = map(self._tables.region.width, self._tables.values)
        return [
            torch.cat([part.reshape(-1, width) for part in parts])
            for width, parts in zip(widths, zip(*computed, strict=True), strict=True)
        ]

    def _note(self, rows: torch.Tensor, expected: torch.Tensor, stored: torch.Tensor) -> None:
        distance = (expected.double() - stored.double()).abs().nan_to_num(nan=torch.inf).amax(1).float()
        self.deviation[rows] = torch.maximum(self.deviation[rows], distance.cpu())

    def _judge(
        self, layout: Layout, block: list[Call], node: Node, expected: torch.Tensor, stored: torch.Tensor, figures: Figures
    ) -> _Wrong | None:
        """The first call of a block in which a table is beyond the limits, or None."""
        if layout.as_built:
            beyond = "" if not self._repeats(block) else _unequal(expected, stored)
        else:
            beyond = exceeds(figures, expected.dtype, self._limits)
        if not beyond:
            return None
        differs = (bits_of(expected) != bits_of(stored)).any(1).nonzero().reshape(-1)
        distance = self.deviation[torch.cat([call.rows for call in block])]
        worst = int(differs[distance[differs].argmax()])
        start = 0
        for call in block:
            stop = start + call.rows.numel()
            if worst < stop:
                index, one, other = worst_element(expected[worst], stored[worst])
                here = call.rows[differs[(differs >= start) & (differs < stop)] - start].tolist()
                row = int(call.rows[worst - start])
                rows = [row, *(each for each in here if each != row)]
                return _Wrong(node, Difference(f"table row {row}", beyond, None, index, one, other), call, rows)
            start = stop
        return None

    def _repeats(self, block: list[Call]) -> bool:
        """Whether the region gives the same bits when called again."""
        again = [self.run(call.ids) for call in block]
        once = [self.run(call.ids) for call in block]
        return all(same_bits(a, b) for one, other in zip(again, once, strict=True) for a, b in zip(one, other, strict=True))


def _unequal(expected: torch.Tensor, stored: torch.Tensor) -> str:
    differences = compare_trees(expected.contiguous(), stored.contiguous(), EXACT).differences
    return f"{differences[0].what} in the very calls the table was built with" if differences else ""
