"""One way in which two calls differ, and the element that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Difference:
    """What is beyond the limits in one place.

    Attributes:
        where: the leaf, e.g. "output [0]" or "buffer count"; "" where it is the call as a whole.
        what: a sentence.
        leaf: the leaf's place among the outputs, None where it is not an output.
        index: the element that differs most, None where not elements differ.
        expected, found: that element in the original and in the candidate.
    """

    where: str
    what: str
    leaf: int | None = None
    index: tuple[int, ...] | None = None
    expected: Any = None
    found: Any = None

    def __str__(self) -> str:
        worst = "" if self.index is None else f", {self.found!r} instead of {self.expected!r} at {list(self.index)}"
        return f"{self.where}: {self.what}{worst}" if self.where else self.what + worst

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; values as text."""
        values = (
            {"expected": None, "found": None}
            if self.index is None
            else {"expected": repr(self.expected), "found": repr(self.found)}
        )
        return {"where": self.where, "what": self.what, "index": None if self.index is None else list(self.index), **values}


def worst_element(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[tuple[int, ...], Any, Any]:
    """Index of the element that differs most, and both values; NaN against a number counts most, ±0 least.

    Args:
        reference, candidate: of one shape and dtype, not equal bit by bit.
    """
    if reference.is_complex():
        reference, candidate = torch.view_as_real(reference), torch.view_as_real(candidate)
    one, other = reference.detach(), candidate.detach()
    if one.is_floating_point():
        wide, others = one.double(), other.double()
        same = (wide == others) | (wide.isnan() & others.isnan())
        distance = torch.where(same, 0.0, (others - wide).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))
        if not distance.any():
            distance = (wide.signbit() != others.signbit()).double()
    else:
        distance = (one != other).double() * (other.double() - one.double()).abs().clamp_min(1)
    index = tuple(int(each) for each in torch.unravel_index(distance.argmax(), distance.shape))
    return index, one[index].item(), other[index].item()
