"""The pass manager: transactions, lowering, verification, rollback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..analysis.example import Example, as_examples
from ..analysis.program import GUARDS, Domain, Program
from ..analysis.storage import Storage, measure_program
from ..errors import CaptureError, PassError
from ..lowering import PROVIDERS, Claim, Provider, lower
from ..runtime.guards import InputGuards
from .compare import Limits
from .context import Fuel, Pass, PassContext
from .evidence import Verdict, Verification
from .fold_tokens import FoldTokens
from .latency import Timing, measure_side_by_side
from .outcome import Outcome, Status
from .rewrite import Rewrite
from .structure import structural_hash, verify_structure
from .tabulate import Progress, silent
from .verify import verify


@dataclass(frozen=True)
class Run:
    """One run of a pipeline.

    Attributes:
        captured: the program it was given.
        program: the program to use: rewritten and verified, or the captured one.
        accepted: whether anything was rewritten and verified.
        outcomes: every rule application of every pass.
        rewrites: what was applied and kept.
        claims: which provider took each semantic node.
        verification: the evidence, for the candidate that was verified.
        before, after: bytes of state.
        timing: measured latencies, where latency was the objective.
    """

    captured: Program
    program: Program
    accepted: bool
    outcomes: tuple[Outcome, ...]
    rewrites: tuple[Rewrite, ...]
    claims: tuple[Claim, ...]
    verification: Verification
    before: Storage
    after: Storage
    timing: Timing | None = None

    @property
    def status(self) -> str:
        """`accepted`, `unchanged` (nothing applied) or `rolled_back` (applied, then verification failed)."""
        if self.accepted:
            return "accepted"
        return "rolled_back" if any(outcome.status is Status.REJECTED for outcome in self.outcomes) else "unchanged"


class Pipeline:
    """An ordered list of passes, run as transactions and verified as a whole.

    Args:
        passes: run in this order.
        disable: names of passes to leave out.
        fuel: the largest number of rewrites; None for any.
        limits: how far float outputs may differ.
        providers: who lowers semantic nodes, asked in this order.

    Raises:
        ValueError: `disable` names no pass of the pipeline.
    """

    def __init__(
        self,
        passes: Sequence[Pass] = (FoldTokens(),),
        *,
        disable: Iterable[str] = (),
        fuel: int | None = None,
        limits: Limits | None = None,
        providers: Sequence[Provider] = PROVIDERS,
    ) -> None:
        self.passes = tuple(passes)
        self.disabled = frozenset(disable)
        known = {each.name for each in self.passes}
        if unknown := sorted(self.disabled - known):
            raise ValueError(f"disable names {unknown}; the passes are {sorted(known)}")
        self.fuel = fuel
        self.limits = limits or Limits()
        self.providers = tuple(providers)

    def rewrite(
        self, program: Program, progress: Progress = silent, model: nn.Module | None = None, owner: nn.Module | None = None
    ) -> tuple[Program, list[Outcome], list[Rewrite]]:
        """Run the passes on copies of `program`, one transaction each; nothing is lowered or verified.

        Raises:
            PassError: a pass left its copy malformed; `program` is as it was.
        """
        context = PassContext(Fuel(self.fuel), progress, model, owner)
        outcomes: list[Outcome] = []
        rewrites: list[Rewrite] = []
        for each in self.passes:
            if each.name in self.disabled:
                outcomes.append(Outcome(each.name, Status.DISABLED, "the whole pass", "disabled by name"))
                continue
            before = structural_hash(program.module)
            result = each.run(program.copy(), context)
            try:
                verify_structure(result.program.module, program.module)
            except PassError as error:
                raise PassError(f"pass {each.name}: {error}") from error
            outcomes += result.outcomes
            if structural_hash(result.program.module) != before:
                program = result.program
                rewrites += result.rewrites
        return program, outcomes, rewrites

    def run(
        self,
        program: Program,
        examples: Iterable[Example],
        *,
        original: nn.Module | None = None,
        owner: nn.Module | None = None,
        progress: Progress = silent,
    ) -> Run:
        """Rewrite, lower and verify `program`; on any difference everything is rolled back.

        Args:
            program: from `capture`; it is not changed.
            examples: calls whose complete outputs are compared; at least one.
            original: what to compare with; the captured program itself if None.
            owner: a model that encloses `original`; state it holds is not counted as freed.
            progress: called during long work.

        Raises:
            ExampleError: no examples, or the original fails on one.
            CaptureError: the captured program does not agree with `original`.
            PassError, LoweringError: a pass or provider misbehaved; nothing is lost.
        """
        calls = as_examples(examples)
        rewritten, outcomes, rewrites = self.rewrite(program, progress, original, owner)
        modified = rewritten is not program
        candidate = rewritten.copy()
        claims = lower(candidate.module, self.providers)
        reference = original if original is not None else program.module
        verification = verify(reference, candidate, rewrites, calls, self.limits, progress)
        accepted = modified and verification.success
        if modified and not accepted:
            outcomes = [_ended(outcome, Status.REJECTED, _why(verification)) for outcome in outcomes]
        timing = self._timing(program, candidate, calls) if accepted else None
        if timing is not None and not timing.faster:
            accepted = False
            outcomes = [_ended(outcome, Status.REFUSED, f"measured slower: {timing}") for outcome in outcomes]
        if not accepted:
            _require_faithful(verification if not modified else verify(reference, program, (), calls, self.limits, progress))
        final = candidate if accepted else program.copy()
        _install_guards(final, verification)
        return Run(
            program,
            final,
            accepted,
            tuple(outcomes),
            tuple(rewrites) if accepted else (),
            tuple(claims) if accepted else (),
            verification,
            measure_program(program),
            measure_program(final),
            timing,
        )

    def _timing(self, program: Program, candidate: Program, calls: Sequence[Example]) -> Timing | None:
        """Side by side, where a pass aims at latency."""
        aims = any(getattr(each, "max_table_bytes", None) is not None for each in self.passes)
        return measure_side_by_side(program.module, candidate.module, calls) if aims else None


def _require_faithful(verification: Verification) -> None:
    """The captured graph must be the model before it may be handed back in the model's place."""
    if verification.verdict is Verdict.DIFFERENT:
        raise CaptureError(
            f"the captured graph itself differs from the model: {'; '.join(verification.because)}. Nothing was rewritten; "
            "use the model as it is and report the operation"
        )


def _ended(outcome: Outcome, status: Status, reason: str) -> Outcome:
    """An applied outcome that did not last; any other as it is."""
    return replace(outcome, status=status, reason=reason) if outcome.status is Status.APPLIED else outcome


def _why(verification: Verification) -> str:
    return f"{verification.verdict}: {'; '.join(verification.because)}"


def _install_guards(program: Program, verification: Verification) -> None:
    """Let the program's input check also hold the ids to the numbers of dimensions that were verified."""
    places = {node.name: place for place, node in enumerate(program.input_nodes())}
    ranks = {name: (places[name], frozenset(admitted)) for name, admitted in verification.ranks.items()}
    reachable = {name: (places[name], _mask(domain)) for name, domain in program.tokens.items() if domain.reachable is not None}
    sizes = program.module.get_submodule(GUARDS)
    program.module.add_submodule(GUARDS, InputGuards(sizes, ranks, reachable))


def _mask(domain: Domain) -> torch.Tensor:
    """Which ids are reachable, bool [V]."""
    mask = torch.zeros(domain.size, dtype=torch.bool)
    mask[domain.ids()] = True
    return mask
