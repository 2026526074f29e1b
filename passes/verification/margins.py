"""How far decisions were from another outcome: the least distance, and how many there are by power of ten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

LEAST_POWER = -12
"""Margins below 10^-12 count with those of that power."""


@dataclass(frozen=True)
class Margins:
    """The margins of some decisions, in units of the score.

    Attributes:
        examined: how many there were.
        smallest: the least; infinite where none has another outcome.
        ties: how many are 0.
        powers: how many lie in [10^p, 10^(p+1)), by p; ties and infinite ones are not among them.
    """

    examined: int = 0
    smallest: float = math.inf
    ties: int = 0
    powers: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(margins: torch.Tensor) -> Margins:
        """Of a float tensor of any shape."""
        flat = margins.reshape(-1).double()
        proper = flat[(flat > 0) & flat.isfinite()]
        rounded = proper.log10().floor().clamp_min(LEAST_POWER).int()
        powers, counts = torch.unique(rounded, return_counts=True)
        smallest = float(flat.min()) if flat.numel() else math.inf
        counted = dict(zip(powers.tolist(), counts.tolist(), strict=True))
        return Margins(flat.numel(), smallest, int((flat == 0).sum()), counted)

    def __add__(self, other: Margins) -> Margins:
        both = sorted({*self.powers, *other.powers})
        powers = {power: self.powers.get(power, 0) + other.powers.get(power, 0) for power in both}
        smallest = min(self.smallest, other.smallest)
        return Margins(self.examined + other.examined, smallest, self.ties + other.ties, powers)

    def to_dict(self) -> dict[str, Any]:
        smallest = self.smallest if math.isfinite(self.smallest) else None
        powers = {str(power): count for power, count in sorted(self.powers.items())}
        return {"examined": self.examined, "smallest": smallest, "ties": self.ties, "powers_of_ten": powers}

    def __str__(self) -> str:
        """The histogram, e.g. "0: 2, 1e-08: 1, 1e-03: 57"."""
        ties = [f"0: {self.ties:,}"] if self.ties else []
        return ", ".join([*ties, *(f"1e{power:+03d}: {count:,}" for power, count in sorted(self.powers.items()))])
