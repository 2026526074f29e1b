"""Compares calls: structure, dtypes, shapes, devices, layouts, aliasing, values; floats to limits, all else exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._torch import leaf_paths, tree_flatten
from .difference import Difference, worst_element
from .figures import LOW_PRECISION, Figures, Limits, exceeds, figures_of, further_from
from .observe import Observation

PROPERTIES = ("dtype", "shape", "device", "layout")
"""Of tensors, which must be the same."""

UNEQUAL = Figures(exact=False, bitwise=False)


@dataclass(frozen=True)
class Comparison:
    """Two calls compared.

    Attributes:
        differences: those that exceed the limits; none: the calls agree.
        figures: the worst ones.
        unsure: why nothing can be said about some of the rest.
    """

    differences: tuple[Difference, ...]
    figures: Figures
    unsure: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        return not self.differences


def compare_calls(reference: Observation, candidate: Observation, limits: Limits, wide: Any = None) -> Comparison:
    """Outputs, what they share memory with, inputs after the call, buffers written, and exceptions (by class).

    Where all that agrees, also the same call once more, on the buffers that the first one left.

    Args:
        reference, candidate: the two calls.
        limits: for float values.
        wide: the outputs computed in float64, where they are known.
    """
    if reference.error is not None or candidate.error is not None:
        return _compare_errors(reference, candidate)
    first = both(
        [
            compare_trees(reference.outputs, candidate.outputs, limits, "output ", wide),
            _compare_memory(reference, candidate),
            _compare_inputs(reference.inputs, candidate.inputs, limits),
            _compare_buffers(reference.buffers, candidate.buffers, limits),
            _compare_random(reference.random, candidate.random),
        ]
    )
    return both([first, _compare_again(reference.again, candidate.again, limits)]) if first.agree else first


def both(comparisons: Sequence[Comparison]) -> Comparison:
    """Several comparisons as one."""
    worst = Figures()
    for each in comparisons:
        worst = worst.worst(each.figures)
    differences = tuple(difference for each in comparisons for difference in each.differences)
    return Comparison(differences, worst, tuple(text for each in comparisons for text in each.unsure))


def _compare_errors(reference: Observation, candidate: Observation) -> Comparison:
    """Exceptions by class: their texts name nodes and shapes that may differ."""
    if type(reference.error) is type(candidate.error):
        return Comparison((), Figures())
    what = "returned a value" if candidate.error is None else f"raised {candidate.error!r}"
    return Comparison((Difference("", f"{what} where the original {reference.did}"),), UNEQUAL)


def _compare_again(reference: Observation | None, candidate: Observation | None, limits: Limits) -> Comparison:
    """A second call, which tells a buffer that is read from its value at the time of the fold."""
    if reference is None or candidate is None:
        return Comparison((), Figures())
    second = compare_calls(reference, candidate, limits)
    differences = (replace(each, where=f"second call {each.where}".rstrip(), leaf=None) for each in second.differences)
    return replace(second, differences=tuple(differences))


def _compare_random(reference: torch.Tensor | None, candidate: torch.Tensor | None) -> Comparison:
    """What a call draws from the random generator moves everything drawn after it."""
    if reference is None or candidate is None or torch.equal(reference, candidate):
        return Comparison((), Figures())
    text = "left in another state than by the original: other random numbers were drawn"
    return Comparison((Difference("random generator", text),), UNEQUAL)


def _compare_inputs(reference: Any, candidate: Any, limits: Limits) -> Comparison:
    """A model may write into its arguments."""
    return _not_outputs(compare_trees(reference, candidate, limits, "input after the call "))


def _not_outputs(comparison: Comparison) -> Comparison:
    return replace(comparison, differences=tuple(replace(each, leaf=None) for each in comparison.differences))


def _compare_buffers(
    reference: Mapping[str, torch.Tensor], candidate: Mapping[str, torch.Tensor], limits: Limits
) -> Comparison:
    """Buffers that one side writes and the other does not, and what both write."""
    found = [
        Difference(f"buffer {name}", "not written, as it is in the original") for name in reference if name not in candidate
    ]
    found += [Difference(f"buffer {name}", "written, not in the original") for name in candidate if name not in reference]
    both = [name for name in reference if name in candidate]
    values = compare_trees(
        {name: reference[name] for name in both}, {name: candidate[name] for name in both}, limits, "buffer "
    )
    return Comparison((*found, *_not_outputs(values).differences), values.figures.worst(UNEQUAL) if found else values.figures)


def _compare_memory(reference: Observation, candidate: Observation) -> Comparison:
    """A write through one of two overlapping tensors shows in the other, so overlaps are part of the outputs."""
    paths = [f"output {path}" for path in leaf_paths(reference.outputs)]
    found = []
    for one, other in sorted(reference.shared ^ candidate.shared):
        new = (one, other) in candidate.shared
        text = (
            f"shares memory with {other}, not in the original" if new else f"shares no memory with {other}, as in the original"
        )
        found.append(Difference(one, text, paths.index(one) if one in paths else None))
    return Comparison(tuple(found), UNEQUAL if found else Figures())


def compare_trees(reference: Any, candidate: Any, limits: Limits, what: str = "", wide: Any = None) -> Comparison:
    """Every leaf: type, dtype, shape, device, memory layout, value.

    Args:
        reference, candidate: outputs, inputs after a call, or buffers.
        limits: for float tensors; everything else must be equal.
        what: prefix of the leaf paths in messages, e.g. "output ".
        wide: the same tree computed in float64, where it is known; low-precision leaves must then be no further from
            it than `Limits.wide_factor` times the reference's distance.
    """
    leaves, spec = tree_flatten(reference)
    others, other_spec = tree_flatten(candidate)
    if spec != other_spec:
        return Comparison((Difference(what.strip(), f"structure {other_spec} instead of {spec}"),), UNEQUAL)
    exact, wide_spec = tree_flatten(wide)
    widened = exact if wide_spec == spec else [None] * len(leaves)
    differences, worst = [], Figures()
    for place, (path, one, other) in enumerate(zip(leaf_paths(reference), leaves, others, strict=True)):
        difference, figures = _compare_leaves(one, other, limits, widened[place])
        worst = worst.worst(figures)
        if difference is not None:
            differences.append(replace(difference, where=f"{what}{path}", leaf=place))
    return Comparison(tuple(differences), worst)


def _compare_leaves(reference: Any, candidate: Any, limits: Limits, wide: Any) -> tuple[Difference | None, Figures]:
    if type(reference) is not type(candidate) and not (
        isinstance(reference, torch.Tensor) and isinstance(candidate, torch.Tensor)
    ):
        return Difference("", f"{type(candidate).__name__} instead of {type(reference).__name__}"), UNEQUAL
    if not isinstance(reference, torch.Tensor):
        same = repr(reference) == repr(candidate)
        return (None, Figures()) if same else (Difference("", f"{candidate!r} instead of {reference!r}"), UNEQUAL)
    for name in PROPERTIES:
        if getattr(reference, name) != getattr(candidate, name):
            text = f"{name} {getattr(candidate, name)} instead of {getattr(reference, name)}"
            return Difference("", text), UNEQUAL
    if layout := _broken_layout(reference, candidate):
        return Difference("", layout), UNEQUAL
    figures = figures_of(reference, candidate)
    if figures.bitwise:
        return None, figures
    text = exceeds(figures, reference.dtype, limits) or _zeros(reference, candidate, figures)
    if not text and isinstance(wide, torch.Tensor) and reference.dtype in LOW_PRECISION:
        text = further_from(wide, reference, candidate, limits.wide_factor)
    if not text:
        return None, figures
    return Difference("", text + _nans(reference, candidate), None, *worst_element(reference, candidate)), figures


def _broken_layout(reference: torch.Tensor, candidate: torch.Tensor) -> str:
    """Strides other than the reference's where that is contiguous, which callers may rely on (`view`, data pointers)."""
    formats = [torch.contiguous_format]
    formats += [torch.channels_last] if reference.dim() == 4 else [torch.channels_last_3d] if reference.dim() == 5 else []
    if reference.layout is not torch.strided:
        return ""
    for each in formats:
        if reference.is_contiguous(memory_format=each) and not candidate.is_contiguous(memory_format=each):
            return f"strides {tuple(candidate.stride())} where the original is contiguous, {tuple(reference.stride())}"
    return ""


def _zeros(reference: torch.Tensor, candidate: torch.Tensor, figures: Figures) -> str:
    """Zeros of the other sign where all values are equal, so that rounding explains nothing."""
    if not (figures.exact and reference.is_floating_point()):
        return ""
    flipped = int(((reference == 0) & (reference.signbit() != candidate.signbit())).sum())
    return f"{flipped} zero(s) of the other sign, all values equal otherwise" if flipped else ""


def _nans(reference: torch.Tensor, candidate: torch.Tensor) -> str:
    if not reference.is_floating_point() or not (moved := int((reference.isnan() != candidate.isnan()).sum())):
        return ""
    return f", NaN on one side only in {moved} place(s)"
