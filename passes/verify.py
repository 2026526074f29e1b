"""Complete outputs of a candidate against the original: on the user's examples, and on calls made up around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from .._torch import flatten_inputs
from ..analysis.example import Example
from ..analysis.program import GUARDS, Program
from ..errors import ExampleError
from .rewrite import Rewrite
from .tables.tabulate import Progress
from .verification.check_decisions import check_decisions
from .verification.check_tables import check_tables
from .verification.counterexample import Counterexample
from .verification.evidence import LayoutEvidence, Verification, verdict_on
from .verification.figures import Figures, Limits
from .verification.fragility import Fragility
from .verification.probing import admitted_ranks, probe_outside, probe_small_sizes
from .verification.references import References


@dataclass(frozen=True)
class _Outputs:
    """What was found about complete outputs."""

    wrong: list[Counterexample]
    worst: Figures
    said: dict[str, str]
    unsure: list[str]


class Verifier:
    """Decides whether candidates may stand in for one original.

    What the original does on the examples is computed once, what was found for a rewrite's tables once a candidate.

    Args:
        original: the user's model.
        examples: calls whose complete outputs are compared; the original must be able to run them.
        limits: for float values.
        progress: called during the table checks.
        time_budget: as in `check_tables`, for each rewrite.
        near_ties: calls that were made up, on which complete outputs are compared as well.
        fragilities: of token-only decisions: their fragile tokens are asked for in calls of every number of rows.

    Attributes:
        compared: how many candidates' complete outputs were compared so far.
    """

    def __init__(
        self,
        original: nn.Module,
        examples: Sequence[Example],
        limits: Limits,
        progress: Progress,
        time_budget: float | None = None,
        near_ties: Sequence[Example] = (),
        fragilities: Sequence[Fragility] = (),
    ) -> None:
        self._original = original
        self._examples = examples
        self._limits = limits
        self._progress = progress
        self._time_budget = time_budget
        self._fragilities = fragilities
        self._references = References(original, examples, limits)
        self._near_ties = References(original, near_ties, limits, "near tie", made_up=True)
        self._checked: Program | None = None
        self._tables: dict[str, tuple[list[LayoutEvidence], list[Counterexample]]] = {}
        self.compared = 0

    def tables(self, rewrite: Rewrite, candidate: Program) -> tuple[list[LayoutEvidence], list[Counterexample]]:
        """The evidence for a rewrite's tables and decisions, and a counterexample for each that is beyond the limits."""
        if candidate is not self._checked:
            self._checked, self._tables = candidate, {}
        if rewrite.name not in self._tables:
            asked = self._time_budget, self._fragilities
            evidence, wrong = check_tables(rewrite, candidate, self._limits, self._progress, *asked)
            decided, otherwise = check_decisions(rewrite, candidate, self._progress, *asked)
            self._tables[rewrite.name] = [*evidence, *decided], [*wrong, *otherwise]
        return self._tables[rewrite.name]

    def outputs(self, candidate: Program) -> list[Counterexample]:
        """Where complete outputs differ, on the examples and on small sizes.

        Raises:
            ExampleError: the original fails on an example.
        """
        return self._compare(candidate).wrong

    def _compare(self, candidate: Program) -> _Outputs:
        self.compared += 1
        said: dict[str, str] = {}

        wrong, worst, unsure = self._references.compare_program(candidate)
        if self._near_ties.examples and not self._references.unrepeatable:
            found, figures, unclear = self._near_ties.compare_program(candidate)
            wrong, unsure = [*wrong, *found], [*unsure, *unclear]
            apart = f"max-abs {figures.max_abs:.2e}, relative L2 {figures.relative_l2:.2e}"
            if ran := sum(map(bool, self._near_ties.observed())):
                said[f"{ran} calls near a tie"] = "bitwise equal" if figures.bitwise else apart
        if not self._references.unrepeatable:
            wrong += probe_small_sizes(self._original, candidate, self._examples[0], self._limits, said)
        return _Outputs(wrong, worst, said, unsure)

    def verify(self, candidate: Program, rewrites: Sequence[Rewrite]) -> Verification:
        """The verdict on a lowered candidate, with everything it rests on.

        Raises:
            ExampleError: as `outputs`.
        """
        found = self._compare(candidate)
        layouts: list[LayoutEvidence] = []
        for rewrite in rewrites:
            evidence, failures = self.tables(rewrite, candidate)
            layouts += evidence
            found.wrong.extend(failures)
        if not self._references.unrepeatable:
            found.wrong.extend(probe_outside(self._original, candidate, self._examples[0], self._limits, found.said))
        return Verification(
            *verdict_on(found.wrong, found.unsure),
            len(self._examples),
            found.worst,
            tuple(layouts),
            found.said,
            admitted_ranks(self._original, candidate, self._examples, self._limits),
            self._limits,
            tuple(found.wrong),
        )


def require_calls(program: Program, examples: Sequence[Example]) -> None:
    """Every example must be the kind of call a program was captured with, and of sizes and numbers that it covers.

    Raises:
        ExampleError: one has another structure, another value or size where the graph holds one, token ids of another number
            of dimensions, or some that the user said would not occur.
    """
    for place, example in enumerate(examples):
        try:
            leaves = flatten_inputs(program.module, example.args, dict(example.kwargs))
        except ValueError as error:
            raise ExampleError(f"example {place} is another kind of call than the captured one: {error}") from error
        for node, leaf in zip(program.input_nodes(), leaves, strict=True):
            if why := _misfit(program, node, leaf):
                raise ExampleError(f"example {place}: {node.name} {why}")
        try:
            program.module.get_submodule(GUARDS)(*leaves)
        except (AssertionError, IndexError) as error:  # the latter where a dimension is missing
            fixed = "; ".join(map(str, program.specialised)) or "nothing by itself"
            raise ExampleError(
                f"example {place} is no call that the captured graph covers: {error}. Fixed at capture: {fixed}. A capture "
                "fixes what dynamic= says, and sizes and numbers that the model uses in Python, as in a loop or a branch; give "
                "examples that agree in it and compile for each"
            ) from error


def _misfit(program: Program, node: Node, leaf: Any) -> str:
    """Why an argument is not one that the program was captured for; "" where it is."""
    traced, domain = node.meta["val"], program.tokens.get(node.name)
    given, held = ("a tensor" if isinstance(each, torch.Tensor) else repr(each) for each in (leaf, traced))
    fixed = traced is None or isinstance(traced, bool | int | float | str)
    if isinstance(leaf, torch.Tensor) != isinstance(traced, torch.Tensor) or (fixed and leaf != traced):
        return f"is {given}, but the example that is traced has {held}; compile once for each"
    if domain is None:
        return ""
    if leaf.dim() != traced.dim():
        return (
            f"has {leaf.dim()} dimensions, but the example that is traced has {traced.dim()}; give examples of one number. "
            "Others are admitted by themselves where the model is seen to do the same with them"
        )
    if domain.stated or domain.reachable is not None:
        ids, reachable = leaf.long(), torch.tensor(domain.reachable or (), device=leaf.device)
        strange = ids[(ids >= 0) & (ids >= domain.size if domain.reachable is None else ~torch.isin(ids, reachable))]
        return f"holds id {int(strange[0])}, which is not in its domain {domain}; state all that occur" if len(strange) else ""
    return ""
