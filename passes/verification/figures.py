"""How far two tensors differ, and how far they may."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .bits import bits_of, same_bits

LOW_PRECISION = (torch.bfloat16, torch.float16)
"""Dtypes whose values are also compared with a float64 reference."""

RELATIVE_FLOOR = 1e-12


@dataclass(frozen=True)
class Limits:
    """How far float values may differ; both limits must hold for every tensor.

    Attributes:
        max_abs: the largest absolute difference, by dtype.
        relative_l2: ‖candidate − reference‖₂ / max(‖reference‖₂, 1e-12), by dtype.
        wide_factor: how much further from a float64 reference, in relative L2, a low-precision candidate may be than
            the original is (which counts as at least one rounding, half the dtype's epsilon).

    Raises:
        TypeError: limits that are not given by dtype.
        ValueError: a limit that is negative or NaN, or a dtype with `max_abs` alone.
    """

    max_abs: Mapping[torch.dtype, float] = field(
        default_factory=lambda: {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
    )
    relative_l2: Mapping[torch.dtype, float] = field(
        default_factory=lambda: {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
    )
    wide_factor: float = 1.5

    def __post_init__(self) -> None:
        for name, limits in (("max_abs", self.max_abs), ("relative_l2", self.relative_l2)):
            if not isinstance(limits, Mapping) or not all(isinstance(dtype, torch.dtype) for dtype in limits):
                raise TypeError(f"Limits: {name} is {limits!r}; pass a limit for each dtype, as in {{torch.float32: 1e-5}}")
            for dtype, limit in limits.items():
                if not limit >= 0:
                    raise ValueError(f"Limits: {name} for {dtype} must be 0 or more, got {limit}")
        if alone := [str(dtype) for dtype in self.max_abs if dtype not in self.relative_l2]:
            raise ValueError(f"Limits: max_abs has {', '.join(alone)}, relative_l2 has not; give both")
        if not self.wide_factor >= 0:
            raise ValueError(f"Limits: wide_factor must be 0 or more, got {self.wide_factor}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "max_abs": {str(dtype): limit for dtype, limit in self.max_abs.items()},
            "relative_l2": {str(dtype): limit for dtype, limit in self.relative_l2.items()},
            "relative_l2_floor": RELATIVE_FLOOR,
            "wide_factor": self.wide_factor,
        }


def as_limits(limits: Limits | None) -> Limits:
    """`limits`, or the defaults.

    Raises:
        TypeError: something else.
    """
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits is {limits!r}; pass foldfx.Limits(max_abs={{torch.float32: …}}, relative_l2={{…}})")
    return limits or Limits()


EXACT = Limits(dict.fromkeys(Limits().max_abs, 0.0), dict.fromkeys(Limits().relative_l2, 0.0))
"""Nothing may differ in value."""


@dataclass(frozen=True)
class Figures:
    """How far two tensors of one shape and dtype differ.

    Attributes:
        max_abs: largest absolute difference (0 for discrete tensors that are equal).
        relative_l2: relative Euclidean distance.
        exact: numerically equal, NaN equal to NaN.
        bitwise: equal bit patterns; ±0 differ.
    """

    max_abs: float = 0.0
    relative_l2: float = 0.0
    exact: bool = True
    bitwise: bool = True

    def worst(self, other: Figures) -> Figures:
        """The worse of both in every respect."""
        return Figures(
            max(self.max_abs, other.max_abs),
            max(self.relative_l2, other.relative_l2),
            self.exact and other.exact,
            self.bitwise and other.bitwise,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; an infinite distance is None."""
        numbers = {"max_abs": self.max_abs, "relative_l2": self.relative_l2}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**finite, "exact": self.exact, "bitwise": self.bitwise}


def exceeds(figures: Figures, dtype: torch.dtype, limits: Limits) -> str:
    """What of `figures` is beyond the limits for `dtype`, as a sentence; "" where nothing is."""
    if dtype not in limits.max_abs:
        return "" if figures.exact else f"{dtype} values differ, by up to {figures.max_abs:g}"
    if figures.max_abs > limits.max_abs[dtype] or math.isnan(figures.max_abs):
        return f"max-abs {figures.max_abs:.3e} exceeds {limits.max_abs[dtype]:.0e} for {dtype}"
    if figures.relative_l2 > limits.relative_l2[dtype]:
        return f"relative L2 {figures.relative_l2:.3e} exceeds {limits.relative_l2[dtype]:.0e} for {dtype}"
    return ""


def figures_of(reference: torch.Tensor, candidate: torch.Tensor) -> Figures:
    """Figures for two tensors of one shape and dtype, computed in float64.

    NaN equals NaN and an infinity its like; where only one side is NaN or infinite the difference is infinite. Integers
    that are not equal differ by at least 1, also beyond 2^53.
    """
    if same_bits(reference, candidate):
        return Figures()
    if reference.is_complex():
        reference, candidate = torch.view_as_real(reference), torch.view_as_real(candidate)
    if not reference.is_floating_point():
        difference = (reference.double() - candidate.double()).abs().max().item()
        return Figures(max(difference, 1.0), math.inf, False, False)
    one, other = reference.detach().double(), candidate.detach().double()
    equal = (one == other) | (one.isnan() & other.isnan())
    error = torch.where(equal, 0.0, (other - one).abs().nan_to_num(nan=math.inf, posinf=math.inf))
    finite = torch.where(one.isfinite(), one, 0.0)
    relative = error.norm().item() / max(finite.norm().item(), RELATIVE_FLOOR)
    return Figures(error.max().item(), relative, bool(equal.all()), False)


def figures_of_rows(reference: torch.Tensor, candidate: torch.Tensor) -> Figures:
    """Figures for tables [rows, width]: relative L2 is the worst of any row, so that many rows hide no wrong one."""
    if same_bits(reference, candidate):
        return Figures()
    different = (bits_of(reference) != bits_of(candidate)).any(1)
    one, other = reference[different], candidate[different]
    whole = figures_of(one, other)
    if not one.is_floating_point() or whole.relative_l2 == 0.0 or whole.max_abs == math.inf:
        return whole
    wide, error = one.double(), (other.double() - one.double()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    norms = wide.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).norm(dim=1).clamp_min(RELATIVE_FLOOR)
    return replace(whole, relative_l2=(error.norm(dim=1) / norms).max().item())


def further_from(wide: torch.Tensor, reference: torch.Tensor, candidate: torch.Tensor, factor: float) -> str:
    """Whether the candidate is further from a float64 reference than the original is, as a sentence; "" where not.

    Args:
        wide: the float64 values, of the same shape.
        reference, candidate: low-precision tensors of one dtype.
        factor: see `Limits.wide_factor`.
    """
    theirs, ours = (_distance(wide, each) for each in (reference, candidate))
    allowed = factor * max(theirs, torch.finfo(reference.dtype).eps / 2)
    if ours <= allowed:
        return ""
    return f"relative L2 {ours:.3e} from the float64 reference exceeds {factor:g} × the original's {theirs:.3e}"


def _distance(wide: torch.Tensor, narrow: torch.Tensor) -> float:
    return figures_of(wide.double(), narrow.double()).relative_l2
