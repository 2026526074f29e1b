"""What verification showed, and what it did not: the data behind `equivalent_on`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .counterexample import Counterexample
from .figures import Figures, Limits


class Verdict(StrEnum):
    """`undecided` is never success."""

    EQUIVALENT_ON = "equivalent_on"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


def verdict_on(wrong: Sequence[Counterexample], unsure: Sequence[str]) -> tuple[Verdict, tuple[str, ...]]:
    """What follows from the differences and from what stays open, and the sentences it rests on."""
    verdict = Verdict.DIFFERENT if wrong else Verdict.UNDECIDED if unsure else Verdict.EQUIVALENT_ON
    return verdict, tuple(map(str, wrong)) or tuple(unsure)


@dataclass(frozen=True)
class LayoutEvidence:
    """One table, or one decision computed from tables, compared with its region, called on ids in one layout.

    Attributes:
        table: the value tabulated or decided.
        layout: what kind of call, e.g. "scalar".
        shape: the shape of ids it was called with, e.g. "[257]".
        tokens: how many ids of the domain were compared.
        domain: how many there are.
        figures: worst figures over all calls.
        note: why the layout's own shape was not possible, or "".
        kind: "table" or "decision".
    """

    table: str
    layout: str
    shape: str
    tokens: int
    domain: int
    figures: Figures
    note: str = ""
    kind: str = "table"

    def to_dict(self) -> dict[str, Any]:
        plain = {
            "kind": self.kind,
            "table": self.table,
            "layout": self.layout,
            "shape": self.shape,
            "tokens": self.tokens,
            "domain": self.domain,
        }
        return {**plain, **self.figures.to_dict(), "note": self.note}


@dataclass(frozen=True)
class Verification:
    """The verdict on a candidate and everything it rests on.

    Attributes:
        verdict: see `Verdict`.
        because: what differed or what stayed open; empty where equivalent.
        examples: how many user examples were compared.
        figures: worst figures over the complete outputs of the examples.
        layouts: table evidence.
        outside: for ids outside the domain and for sizes 0 and 1, what each side did, by probe.
        ranks: for each token input the numbers of dimensions that were verified.
        limits: the limits applied.
        counterexamples: a call for each difference.
    """

    verdict: Verdict
    because: tuple[str, ...] = ()
    examples: int = 0
    figures: Figures = field(default_factory=Figures)
    layouts: tuple[LayoutEvidence, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    counterexamples: tuple[Counterexample, ...] = ()

    @property
    def success(self) -> bool:
        return self.verdict is Verdict.EQUIVALENT_ON

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "because": list(self.because),
            "examples": self.examples,
            "outputs": self.figures.to_dict(),
            "layouts": [layout.to_dict() for layout in self.layouts],
            "probes": dict(self.outside),
            "ranks": {name: list(ranks) for name, ranks in self.ranks.items()},
            "limits": self.limits.to_dict(),
        }
