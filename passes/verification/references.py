"""What the original does on the examples, and whether that can be relied on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ...analysis.example import Example
from ...errors import ExampleError
from .compare import Comparison, compare_calls
from .figures import Limits
from .observe import Observation, observe
from .wide import has_low_precision, observe_wide


class References:
    """What the original does on the examples; each is run when first asked for, and once more to see if it repeats.

    Args:
        original: the model.
        examples: calls it must be able to run.
        limits: for float values.

    Raises:
        ExampleError: (when asked) the model fails on an example.
    """

    def __init__(self, original: nn.Module, examples: Sequence[Example], limits: Limits) -> None:
        self.examples = list(examples)
        self._original = original
        self._limits = limits
        self._observed: list[Observation] | None = None
        self._wide: dict[int, Observation] = {}
        self._unsure: dict[str, None] = {}

    def observed(self) -> list[Observation]:
        """One observation for each example."""
        if self._observed is None:
            self._observed = [self._observe(place) for place in range(len(self.examples))]
        return self._observed

    def _observe(self, place: int) -> Observation:
        one, other = (observe(self._original, self.examples[place]) for _ in range(2))
        if one.error is not None:
            raise ExampleError(f"the model fails on example {place}: {one.error!r}") from one.error
        if not compare_calls(one, other, self._limits).agree:
            self._unsure[f"example {place}: the original differs from itself when run twice"] = None
        return one

    @property
    def unsure(self) -> list[str]:
        """Why nothing can be decided, sentence by sentence; empty where it can."""
        self.observed()
        return list(self._unsure)

    def compare(self, place: int, found: Observation) -> Comparison:
        """A candidate's call of example `place` against the original's.

        Low-precision outputs that are not equal bit by bit are also measured by the model in float64.
        """
        reference = self.observed()[place]
        comparison = compare_calls(reference, found, self._limits)
        if comparison.figures.bitwise or not comparison.agree or not has_low_precision(reference.outputs):
            return comparison
        if place not in self._wide:
            self._wide[place] = observe_wide(self._original, self.examples[place])
        wide = self._wide[place]
        if wide.error is not None:
            text = (
                f"example {place}: outputs differ and the model does not run in float64 to tell which is nearer: {wide.error!r}"
            )
            self._unsure[text] = None
            return comparison
        return compare_calls(reference, found, self._limits, wide.outputs)
