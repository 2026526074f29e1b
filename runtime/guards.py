"""The input check at the head of a captured program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.fx import Proxy

from .._torch import is_traced
from ..errors import AutocastError, CallError, GradientsError, TokenRankError, TrainingModeError, UnreachableTokenError
from .overlap import overlap

Kind = type | torch.dtype


def kind_of(value: Any) -> Kind:
    """The dtype of a tensor, the type of anything else: 2, 2.0 and True are equal, and compute other values."""
    return value.dtype if isinstance(value, torch.Tensor) else type(value)


def dimensions(inputs: Sequence[Any]) -> tuple[int, ...]:
    """How many dimensions each input has; 0 where it is no tensor."""
    return tuple(value.dim() if isinstance(value, torch.Tensor) else 0 for value in inputs)


class InputGuards(nn.Module):
    """Refuses calls the program was not captured and verified for.

    Export checks sizes and specialised numbers, but not the number of dimensions: a graph with `softmax(dim=1)` runs
    on ids of another rank and means something else there. Nor does it check that a size it took for 2 or more is, nor
    dtypes, on which a model may branch, nor types of numbers, nor that what it writes is no other input's memory.

    Args:
        sizes: export's own guard module, called with every input.
        ranks: for each token input its place among the inputs, and the numbers of dimensions admitted.
        reachable: for token inputs whose tables hold only some ids, their place and a bool mask [V] of those.
        absent: the names and places of the inputs that were None at capture, which export does not check.
        least: (name, place, rank, dimension, least size) where a size of an input of that rank may not be smaller.
        gradients: what the original does otherwise with gradients on, which are refused then; "" admits them.
        kinds: for each input that was not None its place, and the kinds admitted (see `kind_of`).
        apart: (name, place, name, place) of an input that the program writes and another that must not share its memory.
        contiguous: (name, place, whether) of an input that must be contiguous, or must not be.
        together: the numbers of dimensions that all inputs may have in one call (see `dimensions`); none: any.
    """

    _is_impure = True  # torch.fx: a call that dead-code elimination keeps

    def __init__(
        self,
        sizes: nn.Module,
        ranks: Mapping[str, tuple[int, frozenset[int]]],
        reachable: Mapping[str, tuple[int, torch.Tensor]] = MappingProxyType({}),
        absent: Collection[tuple[str, int]] = (),
        least: Collection[tuple[str, int, int, int, int]] = (),
        gradients: str = "",
        kinds: Mapping[str, tuple[int, frozenset[Kind]]] = MappingProxyType({}),
        apart: Collection[tuple[str, int, str, int]] = (),
        contiguous: Collection[tuple[str, int, bool]] = (),
        together: Collection[tuple[int, ...]] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.ranks = dict(ranks)
        self.reachable = dict(reachable)
        self.absent = tuple(absent)
        self.least = tuple(least)
        self.gradients = gradients
        self.kinds = dict(kinds)
        self.apart = tuple(apart)
        self.contiguous = tuple(contiguous)
        self.together = frozenset(together)
        self.eval()

    def forward(self, *inputs: Any) -> None:
        """Check every input, in placeholder order.

        Raises:
            CallError: inputs have dtypes, types, layouts or numbers of dimensions that are not admitted, or one shares memory
                with one that is written. The latter is not checked while tracing.
            TokenRankError: token ids with a number of dimensions that is not admitted.
            UnreachableTokenError: an id the tables do not hold, because it was said not to occur. Not checked while
                tracing; such an id then raises where it is looked up.
            AutocastError: autocast is on.
            GradientsError: gradients are on, and the original does something else with them. Not checked while tracing.
            TrainingModeError: the program is in training mode.
            AssertionError: a size or number differs from what was captured (raised by export's guards too), or an input
                that was None is not.
        """
        if self.training:
            raise TrainingModeError(
                "this program is in training mode, but computes what the model did in eval mode (dropout and batch "
                "statistics included); call .eval() on it, and train the original"
            )
        for name, place in self.absent:
            if inputs[place] is not None:
                raise AssertionError(
                    f"input {name} was None when this program was captured, so it is not read; give an example with it"
                )
        for name, (place, admitted) in self.ranks.items():
            ids = inputs[place]
            if isinstance(ids, torch.Tensor) and ids.dim() not in admitted:
                raise TokenRankError(
                    f"token input {name} has {ids.dim()} dimensions; this program was captured and verified for "
                    f"{sorted(admitted)}. Reshape the ids, or compile on examples with that many dimensions"
                )
        if not any(isinstance(value, Proxy) for value in inputs):
            self._check_kinds(inputs)
        for name, place, rank, dim, least in self.least:
            value = inputs[place]
            if isinstance(value, torch.Tensor) and value.dim() == rank and value.shape[dim] < least:
                raise AssertionError(
                    f"input {name} has size {value.shape[dim]} in dimension {dim}; this program was captured for "
                    f"sizes from {least} on, and a smaller one may mean something else. Capture it with dynamic=True, or "
                    "give an example of that size"
                )
        if torch.compiler.is_compiling():
            self.sizes(*inputs)
        else:
            self._check_untraced(inputs)
            self._check_sizes(inputs)

    def _check_kinds(self, inputs: tuple[Any, ...]) -> None:
        """What proxies of a symbolic trace do not tell."""
        for name, (place, kinds) in self.kinds.items():
            _refuse_other_kinds(name, inputs[place], kinds)
        for name, place, whether in self.contiguous:
            _refuse_other_layouts(name, inputs[place], whether)
        if self.together and dimensions(inputs) not in self.together:
            raise CallError(
                f"the inputs have {dimensions(inputs)} dimensions, in their order; this program was captured and verified for "
                f"{sorted(self.together)}. Reshape them, or give an example with those"
            )

    def _check_untraced(self, inputs: tuple[Any, ...]) -> None:
        """What is not checked while tracing."""
        _refuse_autocast(inputs)
        if self.gradients and torch.is_grad_enabled():
            raise GradientsError(
                f"gradients are on, and with them the model does something else than this program: {self.gradients}. Call "
                "it under torch.no_grad() or torch.inference_mode()"
            )
        for name, place, other, at in self.apart:
            _refuse_shared(name, inputs[place], other, inputs[at])
        for name, (place, mask) in self.reachable.items():
            _refuse_unreachable(name, inputs[place], mask)

    def _check_sizes(self, inputs: tuple[Any, ...]) -> None:
        """By export's guards, whose failures do not say what to do."""
        try:
            self.sizes(*inputs)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; this program was captured for calls of which that holds. Call the original, or compile with an "
                "example of such a call"
            ) from error


def _refuse_autocast(inputs: tuple[Any, ...]) -> None:
    device = next((value.device.type for value in inputs if isinstance(value, torch.Tensor)), "cpu")
    if torch.is_autocast_enabled(device):
        raise AutocastError(f"autocast is on for {device}; a program captured without it would compute other values under it")


def _refuse_other_kinds(name: str, value: Any, admitted: frozenset[Kind]) -> None:
    if (kind := kind_of(value)) not in admitted:
        raise CallError(
            f"input {name} is {_kind_text(kind)}; this program was captured and verified for "
            f"{sorted(map(_kind_text, admitted))}, and the model may do something else with another. Convert it, or give an "
            "example of it"
        )


def _kind_text(kind: Kind) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _refuse_other_layouts(name: str, value: torch.Tensor, contiguous: bool) -> None:
    if value.is_contiguous() != contiguous:
        has, wanted = ("is not", "that is") if contiguous else ("is", "that is not")
        raise CallError(
            f"input {name} {has} contiguous; this program was captured with one {wanted}, and was seen to do something else "
            "than the model with another. Lay it out as in the examples"
        )


def _refuse_shared(written: str, value: torch.Tensor, other: str, beside: torch.Tensor) -> None:
    if not is_traced(value) and overlap(value, beside):
        raise CallError(
            f"input {written}, which is written, shares memory with input {other}; this program reads {other} as it was before "
            "the write. Pass a clone, or give an example of such a call"
        )


def _refuse_unreachable(name: str, ids: torch.Tensor, mask: torch.Tensor) -> None:
    inside = ids[(ids >= 0) & (ids < mask.shape[0])].long()
    unreachable = inside[~mask.to(inside.device)[inside]]
    if unreachable.numel():
        found = sorted(set(unreachable.tolist()))
        raise UnreachableTokenError(
            f"token input {name} carries id {found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}, which "
            "TokenInput(reachable=…) left out; compile again with it among the reachable ids"
        )
