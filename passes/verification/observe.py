"""Runs a module on an example and records everything a caller could see, leaving no trace behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...analysis.attributes import AttributeWatch
from ...analysis.example import Example
from ...analysis.program import Program
from .bits import same_bits
from .memory import shared_memory

SEED = 0


@dataclass(frozen=True)
class Observation:
    """One call.

    Attributes:
        outputs: the returned tree; None where it raised.
        inputs: arguments after the call, as (args, kwargs).
        buffers: the buffers the call changed, and the parameters it wrote, by name.
        shared: pairs of places that share memory, see `shared_memory`.
        random: the state of the CPU's random generator after the call.
        drew: whether the call drew random numbers.
        error: the exception it raised, or None.
        again: the same call once more, where the first one changed buffers: it reads what was written.
    """

    outputs: Any
    inputs: Any
    buffers: Mapping[str, torch.Tensor]
    shared: frozenset[tuple[str, str]] = frozenset()
    random: torch.Tensor | None = None
    drew: bool = False
    error: Exception | None = None
    again: Observation | None = None

    @property
    def did(self) -> str:
        """How the call ended, for messages."""
        return "returned a value" if self.error is None else f"raised {type(self.error).__name__}"


def observe(
    module: nn.Module,
    example: Example,
    written: Collection[str] | None = None,
    seed: int = SEED,
    calls: int = 2,
    gradients: bool = False,
) -> Observation:
    """Call `module` on a copy of the example, without gradients if not asked for, and from a seed.

    Buffers, parameters and attributes that the call writes are put back; an exception is part of the observation.

    Args:
        module: a model or a program's module.
        example: the call.
        written: names of the buffers the call may write; None: any.
        seed: of the random generator.
        calls: how many there are at most, each from the buffers that the one before left.
        gradients: whether they are on; only for a call that writes no buffers, which would keep their history.
    """
    call, watch = example.cloned(), AttributeWatch(module, written)
    outputs, error = None, None
    with torch.set_grad_enabled(gradients), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        try:
            with watch.parameters:
                outputs = module(*call.args, **call.kwargs)
        except Exception as raised:
            error = raised
        after = torch.get_rng_state()
    changed = {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if not same_bits(buffer, watch.buffers.get(name, buffer))
    } | watch.parameters.written()
    inputs = call.args, dict(call.kwargs)
    shared = shared_memory(outputs, inputs, module)
    repeats = changed and error is None and calls > 1
    again = observe(module, example, written, seed, calls - 1, gradients) if repeats else None
    watch.restore()
    return Observation(outputs, inputs, changed, shared, after, not torch.equal(before, after), error, again)


def observe_program(program: Program, example: Example, seed: int = SEED) -> Observation:
    """`observe` for a program, whose writes are known."""
    return observe(program.module, example, program.effects.mutated_buffers, seed)
