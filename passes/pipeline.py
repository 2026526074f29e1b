"""The pass manager: transactions, lowering, verification, rollback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn
from torch.fx import GraphModule

from ..analysis.example import Example, as_examples
from ..analysis.observables import observed
from ..analysis.program import Program, Specialised, own_written_buffers
from ..analysis.storage import Storage, measure_program
from ..errors import CaptureError, PassError
from ..lowering import PROVIDERS, Claim, Provider, lower
from .context import Fuel, Pass, PassContext, PassResult
from .fold_tokens import FoldTokens
from .input_guards import install_guards
from .latency import Timing, measure_side_by_side
from .outcome import Outcome, Status
from .probes import CONTEXTS, Probes, probe_decisions
from .read_only import read_only
from .rewrite import Rewrite
from .rollback import Culprit, Trial, find_culprit
from .structure import state_versions, structural_hash, verify_structure, verify_values
from .tables.tabulate import Progress, silent
from .verification.counterexample import Counterexample
from .verification.evidence import Verdict, Verification
from .verification.figures import Limits, as_limits
from .verification.gradients import change_by_gradients
from .verification.probing import admitted_kinds, admitted_layouts, without_failing_sizes
from .verify import Verifier, require_calls

Step = tuple[str, Program]
"""What was done, such as a pass by name, and the program it left."""


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
        evidence: that for `program`; another one where the candidate was given up.
        before, after: bytes of state.
        timing: measured latencies, where latency was the objective.
        culprits: rewrites found wrong, each with a call that shows it.
        trials: every candidate whose complete outputs were compared on the way, in order.
        time_budget: as given to the pipeline.
        probes: what was found out about decisions.
        steps: "captured", each pass that ran, "lowering", and "rollback" where what these led to was given up.
    """

    captured: Program
    program: Program
    accepted: bool
    outcomes: tuple[Outcome, ...]
    rewrites: tuple[Rewrite, ...]
    claims: tuple[Claim, ...]
    verification: Verification
    evidence: Verification
    before: Storage
    after: Storage
    timing: Timing | None = None
    culprits: tuple[Culprit, ...] = ()
    trials: tuple[Trial, ...] = ()
    time_budget: float | None = None
    probes: Probes = field(default_factory=Probes)
    steps: tuple[Step, ...] = ()

    @property
    def counterexamples(self) -> tuple[Counterexample, ...]:
        """A call for each culprit, or where none was found, for each difference."""
        return tuple(culprit.why for culprit in self.culprits) or self.verification.counterexamples

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
        time_budget: seconds for checking each rewrite's tables in calls of one row; beyond them a sample is checked.
            None: every row.
        probe_contexts: calls the search for near ties of contextual decisions evaluates, see `probes`; 0: none.
        providers: who lowers semantic nodes, asked in this order.

    Raises:
        ValueError: `disable` names no pass of the pipeline, negative fuel or contexts, or a time budget that is not
            positive and finite.
        TypeError: `passes` is no collection of passes, `disable` is one string, or `limits` are no `Limits`.
    """

    def __init__(
        self,
        passes: Sequence[Pass] = (FoldTokens(),),
        *,
        disable: Iterable[str] = (),
        fuel: int | None = None,
        limits: Limits | None = None,
        time_budget: float | None = None,
        probe_contexts: int = CONTEXTS,
        providers: Sequence[Provider] = PROVIDERS,
    ) -> None:
        if isinstance(disable, str):
            raise TypeError(f"disable is {disable!r}; pass a list of names, such as ['fold_tokens']")
        self.passes = _as_passes(passes)
        self.disabled = frozenset(disable)
        known = {each.name for each in self.passes}
        if unknown := sorted(self.disabled - known):
            raise ValueError(f"disable names {unknown}; the passes are {sorted(known)}")
        Fuel(fuel)
        self.fuel = fuel
        self.limits = as_limits(limits)
        if time_budget is not None and not 0 < time_budget < math.inf:
            raise ValueError(f"time_budget must be a positive number of seconds, got {time_budget}; None checks every row")
        if probe_contexts < 0:
            raise ValueError(f"probe_contexts must not be negative, got {probe_contexts}")
        self.time_budget = time_budget
        self.probe_contexts = probe_contexts
        self.providers = tuple(providers)

    def rewrite(
        self, program: Program, context: PassContext | None = None, left: Callable[[Step], object] = lambda step: None
    ) -> tuple[Program, list[Outcome], list[Rewrite]]:
        """Run the passes on copies of `program`, one transaction each; nothing is lowered or verified.

        Args:
            program: not changed.
            context: what the passes share; a new one if None.
            left: called with what each pass that ran leaves.

        Raises:
            PassError: a pass left its copy malformed, returned something else, or would write state; `program` is as it was.
        """
        context = context or PassContext(Fuel(self.fuel))
        captured = program.module
        outcomes: list[Outcome] = []
        rewrites: list[Rewrite] = []
        for each in self.passes:
            if each.name in self.disabled:
                outcomes.append(Outcome(each.name, Status.DISABLED, "the whole pass", "disabled by name"))
                continue
            before, versions = structural_hash(program.module), state_versions(program.module)
            try:
                with read_only(program.module):
                    result = each.run(program.copy(), context)
                if not isinstance(result, PassResult):
                    raise PassError(f"it returned a {type(result).__name__}, not a PassResult")
                verify_structure(result.program.module, program.module)
                for module in (result.program.module, *_region_modules(result.rewrites)):
                    verify_values(module, captured)
                if written := [name for name, version in state_versions(program.module).items() if versions[name] != version]:
                    raise PassError(f"it wrote the tensors {written}; new values are new state")
            except PassError as error:
                raise PassError(f"pass {each.name}: {error}") from error
            outcomes += result.outcomes
            if structural_hash(result.program.module) != before:
                program = result.program
                rewrites += result.rewrites
            left((each.name, program))
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
        require_calls(program, calls)
        reference = program.module if original is None else observed(original, program.observables)
        program = without_failing_sizes(reference, program, calls[0])
        if gradients := change_by_gradients(reference, calls[0], self.limits):
            off = Specialised("gradients", f"off: with them the model does something else: {gradients}")
            program = replace(program, specialised=(*program.specialised, off))
        context = PassContext(progress=progress, model=original, owner=owner)
        probes = probe_decisions(program, context.facts(program), calls, self.probe_contexts, progress)
        verifier = Verifier(reference, calls, self.limits, progress, self.time_budget, probes.examples, probes.fragilities)
        attempts = _Attempts(self, program, context, verifier)
        attempt = attempts.settle()
        built, verification = attempt.built, attempt.verification
        outcomes = built.outcomes
        accepted = built.modified and verification.success
        if built.modified and not accepted:
            outcomes = [_ended(outcome, Status.REJECTED, _why(verification)) for outcome in outcomes]
        timing = self._timing(program, built.candidate, calls) if accepted else None
        if timing is not None and not timing.faster:
            accepted = False
            outcomes = [_ended(outcome, Status.REFUSED, f"measured slower: {timing}") for outcome in outcomes]
        evidence = verification if accepted or not built.modified else verifier.verify(program, ())
        if not accepted:
            _require_faithful(evidence)
        final = built.candidate if accepted else program.copy()
        given_up = [("rollback", final)] if built.modified and not accepted else []
        own_written_buffers(final.module, final.effects)
        kinds = admitted_kinds(reference, final, calls, self.limits)
        layouts = admitted_layouts(reference, final, calls, self.limits)
        install_guards(final, program, verification, calls, gradients, kinds, layouts)
        return Run(
            program,
            final,
            accepted,
            tuple(outcomes),
            tuple(built.rewrites) if accepted else (),
            tuple(built.claims) if accepted else (),
            verification,
            evidence,
            measure_program(program),
            measure_program(final),
            timing,
            attempt.culprits,
            tuple(attempts.trials),
            self.time_budget,
            probes,
            (("captured", program), *built.steps, ("lowering", built.candidate), *given_up),
        )

    def _timing(self, program: Program, candidate: Program, calls: Sequence[Example]) -> Timing | None:
        """Side by side, where a pass aims at latency."""
        if not any(getattr(each, "aims_at_latency", False) for each in self.passes):
            return None
        before, after = program.copy(), candidate.copy()
        for each in (before, after):  # the rounds write buffers; the programs' own stay as captured
            own_written_buffers(each.module, each.effects)
        return measure_side_by_side(before.module, after.module, calls)


def _as_passes(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    listed = tuple(passes) if isinstance(passes, Iterable) else None
    if listed is None or not all(map(_is_pass, listed)):
        raise TypeError(f"passes is {passes!r}; pass a list of objects with a name and a run method, such as [FoldTokens()]")
    return listed


def _is_pass(value: object) -> bool:
    return hasattr(value, "name") and hasattr(value, "run") and not isinstance(value, type)


def _region_modules(rewrites: Iterable[Rewrite]) -> list[GraphModule]:
    """The modules whose state tables are checked against."""
    return list({id(found): found for each in rewrites for t in each.tables if (found := t.region.program.module)}.values())


@dataclass(frozen=True)
class _Built:
    """One candidate, lowered."""

    candidate: Program
    modified: bool
    outcomes: list[Outcome]
    rewrites: list[Rewrite]
    claims: list[Claim]
    log: list[str]
    steps: list[Step]


@dataclass(frozen=True)
class _Attempt:
    """One candidate, the verdict on it, and the rewrites that were left out of it as wrong."""

    built: _Built
    verification: Verification
    culprits: tuple[Culprit, ...]


class _Attempts:
    """Candidates of one program with fewer and fewer rewrites, until one verifies."""

    def __init__(self, pipeline: Pipeline, program: Program, context: PassContext, verifier: Verifier) -> None:
        self._pipeline = pipeline
        self._program = program
        self._context = context
        self._verifier = verifier
        self.trials: list[Trial] = []

    def settle(self) -> _Attempt:
        """The candidate with every rewrite but the culprits; the first one if no culprits explain the difference.

        Where nothing is left of the first one, its outcomes are the last one's: they say why, rung by rung.

        Raises:
            PassError: a pass applies a rewrite that it was told is wrong.
        """
        culprits: list[Culprit] = []
        first = attempt = self._attempt(culprits)
        while attempt.built.log and attempt.verification.verdict is Verdict.DIFFERENT:
            found = self._culprits(attempt)
            if again := {each.rewrite for each in found} & {each.rewrite for each in culprits}:
                raise PassError(f"{', '.join(sorted(again))}: applied again after it was found wrong; ask fuel.admits() first")
            culprits += found
            attempt = self._attempt(culprits)
        if attempt.built.modified and attempt.verification.success:
            return attempt
        last = attempt.built
        gone = not last.modified and any(outcome.status is Status.REJECTED for outcome in last.outcomes)
        built = replace(first.built, outcomes=last.outcomes) if gone else first.built
        return replace(first, built=built, culprits=tuple(culprits))

    def _attempt(self, culprits: Sequence[Culprit]) -> _Attempt:
        built = self._build(culprits)
        verification = self._verifier.verify(built.candidate, built.rewrites)
        self.trials.append(Trial(tuple(built.log), "; ".join(verification.because)))
        return _Attempt(built, verification, tuple(culprits))

    def _build(self, culprits: Sequence[Culprit], only: Sequence[str] | None = None) -> _Built:
        fuel = Fuel(self._pipeline.fuel, {culprit.rewrite: culprit.reason for culprit in culprits}, only)
        steps: list[Step] = []
        rewritten, outcomes, rewrites = self._pipeline.rewrite(self._program, replace(self._context, fuel=fuel), steps.append)
        candidate = rewritten.copy()
        claims = lower(candidate.module, self._pipeline.providers)
        return _Built(candidate, rewritten is not self._program, outcomes, rewrites, claims, fuel.log, steps)

    def _culprits(self, attempt: _Attempt) -> list[Culprit]:
        """Rewrites whose own tables are wrong; if there are none, one found by bisection over the log."""
        built = attempt.built
        wrong = [(each.name, self._verifier.tables(each, built.candidate)[1]) for each in built.rewrites]
        if any(failures for _, failures in wrong):
            return [Culprit(name, failures[0]) for name, failures in wrong if failures]

        def fails(rewrites: Sequence[str]) -> Counterexample | None:
            found = self._verifier.outputs(self._build(attempt.culprits, rewrites).candidate)
            self.trials.append(Trial(tuple(rewrites), "; ".join(map(str, found))))
            return found[0] if found else None

        return [find_culprit(built.log, attempt.verification.counterexamples[0], fails)]


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
