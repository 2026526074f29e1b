"""The pass manager: transactions, lowering, verification, rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..analysis.example import Example, as_examples
from ..analysis.program import GUARDS, Domain, Program, own_written_buffers
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
from .rollback import Culprit, find_culprit
from .structure import state_versions, structural_hash, verify_structure
from .tabulate import Progress, silent
from .verify import Verifier


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
        ValueError: `disable` names no pass of the pipeline, or negative fuel.
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
        Fuel(fuel)
        self.fuel = fuel
        self.limits = limits or Limits()
        self.providers = tuple(providers)

    def rewrite(self, program: Program, context: PassContext | None = None) -> tuple[Program, list[Outcome], list[Rewrite]]:
        """Run the passes on copies of `program`, one transaction each; nothing is lowered or verified.

        Raises:
            PassError: a pass left its copy malformed; `program` is as it was.
        """
        context = context or PassContext(Fuel(self.fuel))
        outcomes: list[Outcome] = []
        rewrites: list[Rewrite] = []
        for each in self.passes:
            if each.name in self.disabled:
                outcomes.append(Outcome(each.name, Status.DISABLED, "the whole pass", "disabled by name"))
                continue
            before, versions = structural_hash(program.module), state_versions(program.module)
            result = each.run(program.copy(), context)
            try:
                verify_structure(result.program.module, program.module)
                if written := [name for name, version in state_versions(program.module).items() if versions[name] != version]:
                    raise PassError(f"it wrote the tensors {written}; new values are new state")
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
        """Rewrite, lower and verify `program`.

        Where complete outputs differ, the rewrites at fault are found by bisection and left out; if the rest does not
        verify, everything is rolled back.

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
        verifier = Verifier(original if original is not None else program.module, calls, self.limits, progress)
        attempt = _Attempts(self, program, PassContext(progress=progress, model=original, owner=owner), verifier).settle()
        outcomes, verification = attempt.outcomes, attempt.verification
        accepted = attempt.modified and verification.success
        if attempt.modified and not accepted:
            outcomes = [_ended(outcome, Status.REJECTED, _why(verification)) for outcome in outcomes]
        timing = self._timing(program, attempt.candidate, calls) if accepted else None
        if timing is not None and not timing.faster:
            accepted = False
            outcomes = [_ended(outcome, Status.REFUSED, f"measured slower: {timing}") for outcome in outcomes]
        if not accepted:
            _require_faithful(verifier.verify(program, ()) if attempt.modified else verification)
        final = attempt.candidate if accepted else program.copy()
        own_written_buffers(final.module, final.effects)
        _install_guards(final, verification)
        return Run(
            program,
            final,
            accepted,
            tuple(outcomes),
            tuple(attempt.rewrites) if accepted else (),
            tuple(attempt.claims) if accepted else (),
            verification,
            measure_program(program),
            measure_program(final),
            timing,
        )

    def _timing(self, program: Program, candidate: Program, calls: Sequence[Example]) -> Timing | None:
        """Side by side, where a pass aims at latency."""
        aims = any(getattr(each, "max_table_bytes", None) is not None for each in self.passes)
        return measure_side_by_side(program.module, candidate.module, calls) if aims else None


@dataclass(frozen=True)
class _Attempt:
    """One candidate and what was found about it."""

    candidate: Program
    modified: bool
    outcomes: list[Outcome]
    rewrites: list[Rewrite]
    claims: list[Claim]
    log: list[str]
    verification: Verification


class _Attempts:
    """Candidates of one program with fewer and fewer rewrites, until one verifies."""

    def __init__(self, pipeline: Pipeline, program: Program, context: PassContext, verifier: Verifier) -> None:
        self._pipeline = pipeline
        self._program = program
        self._context = context
        self._verifier = verifier

    def settle(self) -> _Attempt:
        """The candidate with every rewrite but the culprits; the first one if no culprits explain the difference."""
        left_out: dict[str, str] = {}
        first = attempt = self._attempt(left_out)
        while attempt.log and attempt.verification.verdict is Verdict.DIFFERENT:
            culprits = self._culprits(attempt, left_out)
            left_out |= {culprit.rewrite: culprit.reason for culprit in culprits}
            attempt = self._attempt(left_out)
        return attempt if attempt.modified and attempt.verification.success else first

    def _attempt(self, left_out: Mapping[str, str]) -> _Attempt:
        candidate, modified, outcomes, rewrites, claims, log = self._build(Fuel(self._pipeline.fuel, left_out))
        return _Attempt(candidate, modified, outcomes, rewrites, claims, log, self._verifier.verify(candidate, rewrites))

    def _build(self, fuel: Fuel) -> tuple[Program, bool, list[Outcome], list[Rewrite], list[Claim], list[str]]:
        rewritten, outcomes, rewrites = self._pipeline.rewrite(self._program, replace(self._context, fuel=fuel))
        candidate = rewritten.copy()
        claims = lower(candidate.module, self._pipeline.providers)
        return candidate, rewritten is not self._program, outcomes, rewrites, claims, fuel.log

    def _culprits(self, attempt: _Attempt, left_out: Mapping[str, str]) -> list[Culprit]:
        """Rewrites whose own tables are wrong; if there are none, one found by bisection over the log."""
        wrong = [(each.name, self._verifier.tables(each, attempt.candidate.module)[1]) for each in attempt.rewrites]
        if any(failures for _, failures in wrong):
            return [Culprit(name, failures[0]) for name, failures in wrong if failures]

        def fails(rewrites: Sequence[str]) -> str:
            others = {name: "left out by bisection" for name in attempt.log if name not in rewrites}
            candidate = self._build(Fuel(self._pipeline.fuel, {**left_out, **others}))[0]
            return "; ".join(self._verifier.outputs(candidate)[0])

        return [find_culprit(attempt.log, attempt.verification.because[0], fails)]


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
