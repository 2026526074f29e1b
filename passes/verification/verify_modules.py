"""Compares the complete outputs of any two modules on examples."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from typing import Any

from torch import nn
from torch.fx import GraphModule

from ..._torch import flatten_inputs
from ...analysis.example import Example, as_examples
from ...analysis.observables import observed, underlying
from ...errors import ExampleError
from .evidence import Verification, verdict_on
from .figures import Limits, as_limits
from .observe import Observation, observe
from .references import References


def verify(
    reference: nn.Module,
    candidate: nn.Module,
    examples: Iterable[Example | tuple[Any, Any]],
    *,
    limits: Limits | None = None,
    observables: Collection[str] = (),
) -> Verification:
    """Say whether `candidate` does on the examples what `reference` does.

    Everything a caller can see is compared, as described in docs/verification.md: the output tree, values, inputs after
    the call, buffers written, exceptions. Both are called without gradients, from one seed and in the mode they are in;
    what a call writes is put back. `reference` is called twice: where it differs from itself nothing is decided.

    Args:
        reference: any module, called like the examples.
        candidate: any other one, e.g. `Result.module`, called in the same way.
        examples: at least one call; tensors of any shape and dtype.
        limits: how far float outputs may differ, by dtype; None for the defaults.
        observables: attributes that calls of both set, compared like outputs; as in `compile`.

    Returns:
        `equivalent_on` these examples; `different`, with a counterexample for every difference; or `undecided`, which is not
        success: the reference is not repeatable, or low-precision outputs differ and it does not run in float64.

    Raises:
        ExampleError: no examples, a malformed one, one the reference fails on, or one that is no call of `candidate`.
        CaptureError: an observable is in no module of one of the two, or is registered state.
        TypeError: one of the two is not an `nn.Module`, `limits` are no `Limits`, or `observables` is no list of names.
    """
    for name, module in (("reference", reference), ("candidate", candidate)):
        if not isinstance(module, nn.Module):
            raise TypeError(f"the {name} is a {type(module).__name__}; pass an nn.Module, such as Result.module")
    limits, calls = as_limits(limits), as_examples(examples)
    references, other = References(observed(reference, observables), calls, limits), observed(candidate, observables)
    wrong, worst, unsure = references.compare(lambda place, seed: _found(other, calls[place], place, seed))
    return Verification(
        *verdict_on(wrong, unsure), examples=len(calls), figures=worst, limits=limits, counterexamples=tuple(wrong)
    )


def _found(candidate: nn.Module, example: Example, place: int, seed: int) -> Observation:
    found = observe(candidate, example, seed=seed)
    if found.error is not None and (why := _misfit(underlying(candidate), example)):
        raise ExampleError(
            f"example {place} is a call of the reference but not of the candidate: {why}. Give both the same arguments"
        ) from found.error
    return found


def _misfit(module: nn.Module, example: Example) -> str:
    """Why a call has another structure than the module takes; "" where it has the right one."""
    try:
        given = inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments
    except TypeError as error:
        return str(error)
    if not isinstance(module, GraphModule):
        return ""
    named = list(given.items())
    reasons = [_unflattenable(module, named[:count], named[count:]) for count in range(len(named), -1, -1)]
    return reasons[0] if all(reasons) else ""


def _unflattenable(module: GraphModule, positional: list[tuple[str, Any]], by_name: list[tuple[str, Any]]) -> str:
    try:
        flatten_inputs(module, tuple(value for _, value in positional), dict(by_name))
    except ValueError as error:
        return str(error)
    except AttributeError:  # a graph that was not exported takes any structure
        return ""
    return ""
