"""What the original does on the examples, and whether that can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from ...analysis.example import Example
from ...analysis.program import Program
from ...errors import ExampleError
from .compare import Comparison, both, compare_calls
from .counterexample import Counterexample, counterexamples
from .figures import Figures, Limits
from .observe import SEED, Observation, observe, observe_program
from .wide import has_low_precision, observe_wide

SEEDS = (SEED, SEED + 1)


class References:
    """What the original does on the examples; each is run when first asked for, and once more to see if it repeats.

    Args:
        original: the model.
        examples: calls it must be able to run, unless they are made up.
        limits: for float values.
        what: the calls are, for messages.
        made_up: whether the calls are not the user's: those that the model fails on say nothing then.

    Raises:
        ExampleError: (when asked) the model fails on an example of the user's.
    """

    def __init__(
        self, original: nn.Module, examples: Sequence[Example], limits: Limits, what: str = "example", made_up: bool = False
    ) -> None:
        self.examples = list(examples)
        self._original = original
        self._limits = limits
        self._what = what
        self._made_up = made_up
        self._observed: list[list[Observation]] | None = None
        self._wide: dict[int, Observation] = {}
        self._unrepeatable: list[str] = []

    def observed(self) -> list[list[Observation]]:
        """Observations of each example, one for each seed; none of a made-up call that the model fails on."""
        if self._observed is None:
            self._observed = [self._observe(place) for place in range(len(self.examples))]
        return self._observed

    def _observe(self, place: int) -> list[Observation]:
        """One seed, and a second where the call draws random numbers: what does not depend on them is told apart."""
        one, other = (observe(self._original, self.examples[place]) for _ in range(2))
        if one.error is not None and self._made_up:
            return []
        if one.error is not None:
            raise ExampleError(f"the model fails on {self._what} {place}: {one.error!r}") from one.error
        if not compare_calls(one, other, self._limits).agree:
            self._unrepeatable.append(f"{self._what} {place}: the original differs from itself when run twice")
        return [one, observe(self._original, self.examples[place], seed=SEEDS[1])] if one.drew else [one]

    @property
    def unrepeatable(self) -> list[str]:
        """Where the original differs from itself, sentence by sentence, so that differences mean nothing."""
        self.observed()
        return list(self._unrepeatable)

    def compare_program(self, candidate: Program) -> tuple[list[Counterexample], Figures, list[str]]:
        """`compare` for a program."""
        return self.compare(lambda place, seed: observe_program(candidate, self.examples[place], seed), candidate)

    def compare(
        self, call: Callable[[int, int], Observation], candidate: Program | None = None
    ) -> tuple[list[Counterexample], Figures, list[str]]:
        """A candidate's calls of every example against the original's.

        Args:
            call: observes the candidate on an example, by its place, from a seed.
            candidate: the candidate, where it is a program.

        Returns:
            The differences (none where the original differs from itself), the worst figures, and why something stays open.
        """
        unsure, wrong, worst = self.unrepeatable, [], Figures()
        for place, references in enumerate(self.observed()):
            if not references:
                continue
            pairs = zip(SEEDS, references, strict=False)
            comparison = both([self._compare(place, reference, call(place, seed)) for seed, reference in pairs])
            wrong += counterexamples(comparison, f"{self._what} {place}", self.examples[place], candidate)
            worst = worst.worst(comparison.figures)
            unsure += comparison.unsure
        return ([] if self._unrepeatable else wrong), worst, unsure

    def _compare(self, place: int, reference: Observation, found: Observation) -> Comparison:
        """Low-precision outputs that are not equal bit by bit are also measured by the model in float64."""
        comparison = compare_calls(reference, found, self._limits)
        if comparison.figures.bitwise or not comparison.agree or not has_low_precision(reference.outputs):
            return comparison
        if place not in self._wide:
            self._wide[place] = observe_wide(self._original, self.examples[place])
        wide = self._wide[place]
        if wide.error is not None:
            why = f"outputs differ and the model does not run in float64 to tell which is nearer: {wide.error!r}"
            return replace(comparison, unsure=(f"{self._what} {place}: {why}",))
        return compare_calls(reference, found, self._limits, wide.outputs)
