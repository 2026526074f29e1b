"""Compares two complete outputs: structure, dtypes, shapes, devices, values; discrete leaves exactly, floats to limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .._torch import leaf_paths, tree_flatten
from .bits import bits_of, same_bits

RELATIVE_FLOOR = 1e-12


@dataclass(frozen=True)
class Limits:
    """How far float values may differ; both limits must hold for every tensor.

    Attributes:
        max_abs: the largest absolute difference, by dtype.
        relative_l2: ‖candidate − reference‖₂ / max(‖reference‖₂, 1e-12), by dtype.
    """

    max_abs: Mapping[torch.dtype, float] = field(
        default_factory=lambda: {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
    )
    relative_l2: Mapping[torch.dtype, float] = field(
        default_factory=lambda: {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
    )

    def to_dict(self) -> dict[str, Any]:
        return {
            "max_abs": {str(dtype): limit for dtype, limit in self.max_abs.items()},
            "relative_l2": {str(dtype): limit for dtype, limit in self.relative_l2.items()},
            "relative_l2_floor": RELATIVE_FLOOR,
        }


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


@dataclass(frozen=True)
class Comparison:
    """The differences of two trees that exceed the limits (none: they agree), and the worst figures."""

    differences: tuple[str, ...]
    figures: Figures

    @property
    def agree(self) -> bool:
        return not self.differences


def compare_trees(reference: Any, candidate: Any, limits: Limits, what: str) -> Comparison:
    """Compare two pytrees leaf by leaf.

    Args:
        reference, candidate: outputs, inputs after a call, or buffers.
        limits: for float tensors; everything else must be equal.
        what: prefix of the leaf paths in messages, e.g. "output".
    """
    leaves, spec = tree_flatten(reference)
    others, other_spec = tree_flatten(candidate)
    if spec != other_spec:
        return Comparison((f"{what}: structure {other_spec} instead of {spec}",), Figures(exact=False, bitwise=False))
    differences, worst = [], Figures()
    for path, one, other in zip(leaf_paths(reference), leaves, others, strict=True):
        difference, figures = _compare_leaves(one, other, limits)
        worst = worst.worst(figures)
        if difference:
            differences.append(f"{what}{path}: {difference}")
    return Comparison(tuple(differences), worst)


def _compare_leaves(reference: Any, candidate: Any, limits: Limits) -> tuple[str, Figures]:
    unequal = Figures(exact=False, bitwise=False)
    if type(reference) is not type(candidate) and not (
        isinstance(reference, torch.Tensor) and isinstance(candidate, torch.Tensor)
    ):
        return f"{type(candidate).__name__} instead of {type(reference).__name__}", unequal
    if not isinstance(reference, torch.Tensor):
        same = repr(reference) == repr(candidate)
        return ("", Figures()) if same else (f"{candidate!r} instead of {reference!r}", unequal)
    for name in ("dtype", "shape", "device"):
        if getattr(reference, name) != getattr(candidate, name):
            return f"{name} {getattr(candidate, name)} instead of {getattr(reference, name)}", unequal
    figures = figures_of(reference, candidate)
    return exceeds(figures, reference.dtype, limits), figures


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

    NaN equals NaN and an infinity its like; where only one side is NaN or infinite the difference is infinite.
    """
    bitwise = same_bits(reference, candidate)
    if bitwise:
        return Figures()
    if not reference.is_floating_point():
        difference = (reference.double() - candidate.double()).abs().max().item()
        return Figures(difference, math.inf, False, False)
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
