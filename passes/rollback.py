"""Rollback by culprit: which rewrites a failing candidate owes its failure to, found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .verification.counterexample import Counterexample

Fails = Callable[[Sequence[str]], Counterexample | None]
"""Builds the candidate with just these rewrites; gives a call on which it differs, None where it does not."""


@dataclass(frozen=True)
class Culprit:
    """One rewrite to leave out.

    Attributes:
        rewrite: its name.
        why: a call that shows the difference it makes.
        partner: a rewrite without which it does no harm, or "".
    """

    rewrite: str
    why: Counterexample
    partner: str = ""

    @property
    def reason(self) -> str:
        """For the outcome of the rewrite."""
        together = f" together with {self.partner}" if self.partner else ""
        return f"wrong{together}: {self.why}"


@dataclass(frozen=True)
class Trial:
    """One candidate of a bisection.

    Attributes:
        rewrites: the rewrites it had.
        why: how its complete outputs differed; "" where they did not.
    """

    rewrites: tuple[str, ...]
    why: str


def find_culprit(log: Sequence[str], why: Counterexample, fails: Fails) -> Culprit:
    """The last rewrite of the shortest failing prefix of `log`, and the one it interacts with, if any.

    Takes at most ⌈log2 n⌉ candidates for the culprit, and where it is not the first rewrite one more to see whether it
    fails alone; where it does not, at most ⌈log2 n⌉ for the partner.

    Args:
        log: the rewrites of a failing candidate, in order; without any of them nothing fails.
        why: a call on which that candidate differs.
        fails: asked for subsets of `log`, in order.
    """
    last, why = _shortest(len(log), why, lambda count: fails(log[:count]))
    culprit = log[last - 1]
    if last == 1:
        return Culprit(culprit, why)
    if alone := fails([culprit]):
        return Culprit(culprit, alone)
    partner, why = _shortest(last - 1, why, lambda count: fails([*log[:count], culprit]))
    return Culprit(culprit, why, log[partner - 1])


def _shortest(count: int, why: Counterexample, fails: Callable[[int], Counterexample | None]) -> tuple[int, Counterexample]:
    """The smallest number up to `count` that fails, given that `count` does and 0 does not."""
    passing = 0
    while count - passing > 1:
        middle = (passing + count) // 2
        if found := fails(middle):
            count, why = middle, found
        else:
            passing = middle
    return count, why
