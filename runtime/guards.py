"""The input check at the head of a captured program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from .._torch import is_traced
from ..errors import AutocastError, CallError, GradientsError, TokenRankError, TrainingModeError, UnreachableTokenError
from .overlap import overlap


class InputGuards(nn.Module):
    """Refuses calls the program was not captured and verified for.

    Export checks sizes and specialised numbers, but not the number of dimensions: a graph with `softmax(dim=1)` runs
    on ids of another rank and means something else there. Nor does it check that a size it took for 2 or more is, nor
    dtypes, on which a model may branch, nor that what it writes is no other input's memory.

    Args:
        sizes: export's own guard module, called with every input.
        ranks: for each token input its place among the inputs, and the numbers of dimensions admitted.
        reachable: for token inputs whose tables hold only some ids, their place and a bool mask [V] of those.
        absent: the names and places of the inputs that were None at capture, which export does not check.
        least: (name, place, rank, dimension, least size) where a size of an input of that rank may not be smaller.
        gradients: what the original does otherwise with gradients on, which are refused then; "" admits them.
        dtypes: for each input that was a tensor its place, and the dtypes admitted.
        apart: (name, place, name, place) of an input that the program writes and another that must not share its memory.
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
        dtypes: Mapping[str, tuple[int, frozenset[torch.dtype]]] = MappingProxyType({}),
        apart: Collection[tuple[str, int, str, int]] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.ranks = dict(ranks)
        self.reachable = dict(reachable)
        self.absent = tuple(absent)
        self.least = tuple(least)
        self.gradients = gradients
        self.dtypes = dict(dtypes)
        self.apart = tuple(apart)
        self.eval()

    def forward(self, *inputs: Any) -> None:
        """Check every input, in placeholder order.

        Raises:
            CallError: an input is no tensor of a dtype that is admitted, or shares memory with one that is written. The latter
                is not checked while tracing.
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
        for name, (place, dtypes) in self.dtypes.items():
            _refuse_other_dtypes(name, inputs[place], dtypes)
        for name, (place, admitted) in self.ranks.items():
            ids = inputs[place]
            if isinstance(ids, torch.Tensor) and ids.dim() not in admitted:
                raise TokenRankError(
                    f"token input {name} has {ids.dim()} dimensions; this program was captured and verified for "
                    f"{sorted(admitted)}. Reshape the ids, or give an example with that many dimensions"
                )
        for name, place, rank, dim, least in self.least:
            value = inputs[place]
            if isinstance(value, torch.Tensor) and value.dim() == rank and value.shape[dim] < least:
                raise AssertionError(
                    f"input {name} has size {value.shape[dim]} in dimension {dim}; this program was captured for "
                    f"sizes from {least} on, and a smaller one may mean something else. Capture it with dynamic=True, or "
                    "give an example of that size"
                )
        if not torch.compiler.is_compiling():
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
        self.sizes(*inputs)


def _refuse_autocast(inputs: tuple[Any, ...]) -> None:
    device = next((value.device.type for value in inputs if isinstance(value, torch.Tensor)), "cpu")
    if torch.is_autocast_enabled(device):
        raise AutocastError(f"autocast is on for {device}; a program captured without it would compute other values under it")


def _refuse_other_dtypes(name: str, value: Any, admitted: frozenset[torch.dtype]) -> None:
    found = getattr(value, "dtype", type(value))
    if found not in admitted:
        raise CallError(
            f"input {name} is {found}; this program was captured and verified for {sorted(map(str, admitted))}, and the model "
            "may do something else with another dtype. Convert it, or give an example of that dtype"
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
