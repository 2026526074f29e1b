"""Operations that hand on their operand, or a view of it, although their schema says that they make a new tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_DROPOUTS = {torch.dropout: "train", functional.dropout: "training"}
"""Dropouts, and the name of their third argument: whether they drop anything."""


class HiddenAliasesShown(TorchFunctionMode):
    """Within this context a dropout outside training is its input, an einsum that only permutes or takes diagonals a view.

    That is what they are when called. Traced by their names they would be new tensors, and a later write in place to one
    of the two would not reach the other.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _DROPOUTS and args and not given.get(_DROPOUTS[func], args[2] if len(args) > 2 else True):
            return args[0]
        if func is torch.einsum and len(args) == 2 and isinstance(args[0], str) and isinstance(args[1], torch.Tensor):
            view = _viewed(args[0], args[1])
            return func(*args) if view is None else view
        return func(*args, **given)


def _viewed(equation: str, operand: torch.Tensor) -> torch.Tensor | None:
    """What an einsum of one operand returns where it takes diagonals and permutes; None where it does more."""
    term, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow or "," in term:
        return None
    hidden = operand.dim() - len(term.replace("...", ""))
    labels, wanted = _labels(term, hidden), _labels(output, hidden)
    if set(labels) != set(wanted) or len(set(wanted)) != len(wanted):
        return None
    while repeated := [label for label in labels if labels.count(label) > 1]:
        one, other, *_ = (place for place, label in enumerate(labels) if label == repeated[0])
        operand = operand.diagonal(0, one, other)
        labels = [*(label for place, label in enumerate(labels) if place not in (one, other)), repeated[0]]
    return operand.permute([labels.index(label) for label in wanted])


def _labels(term: str, hidden: int) -> list[str]:
    """A label for each dimension; the `hidden` ones of an ellipsis have numbers."""
    before, dots, behind = term.partition("...")
    return [*before, *(map(str, range(hidden)) if dots else ()), *behind]
