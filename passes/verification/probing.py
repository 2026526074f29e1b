"""Probes: calls made up around the examples, on which candidate and original must also agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy
import torch
from torch import nn

from ..._torch import size_expression, static_size
from ...analysis.example import Example
from ...analysis.program import Program
from ...runtime.guards import Kind, kind_of
from .compare import compare_calls
from .counterexample import Counterexample, counterexamples
from .figures import Limits
from .gradients import values_of
from .observe import Observation, observe, observe_program
from .variants import first_replaced, in_dtype, in_rank, laid_out_otherwise, resized, with_tokens

RANKS = (0, 1, 2, 3)

ID_DTYPES = (torch.int32, torch.int64)
"""What tables are looked up with."""

FATAL = ("cuda",)
"""Devices on which a read outside a table is no exception: it ends all work of the process there."""


def probe_outside(
    original: nn.Module, candidate: Program, example: Example, limits: Limits, said: dict[str, str]
) -> list[Counterexample]:
    """Ids outside the domain: the candidate must raise what the original raises, and never return another value.

    Where the original returns a value the candidate may raise: such ids are outside the program's contract. Not tried on
    devices in `FATAL`.
    """
    wrong: list[Counterexample] = []
    devices = {node.name: node.meta["val"].device.type for node in candidate.input_nodes() if node.name in candidate.tokens}
    for name, domain in candidate.tokens.items():
        if devices[name] in FATAL:
            said[f"{name} outside the domain"] = f"not tried: on {devices[name]} it would end the process"
            continue
        for bad in (domain.size, -1, -domain.size - 1):
            probe = with_tokens(candidate, example, name, lambda ids, bad=bad: first_replaced(ids, bad))  # type: ignore[misc]
            if probe is None:
                continue
            reference, answer = observe(original, probe), observe_program(candidate, probe)
            said[f"{name}={bad}"] = f"original {reference.did}, folded {answer.did}"
            stricter = reference.error is None and isinstance(answer.error, IndexError | RuntimeError)
            if not stricter:
                comparison = compare_calls(reference, answer, limits)
                wrong.extend(counterexamples(comparison, f"{name}={bad}, outside the domain", probe, candidate)[:1])
    return wrong


def probe_small_sizes(
    original: nn.Module, candidate: Program, example: Example, limits: Limits, said: dict[str, str]
) -> list[Counterexample]:
    """The example with each dynamic size of the token ids set to 0 and to 1, in every input that has it.

    Where the original raises, the candidate raises as well, or returns no elements for no rows. Where export left a
    guard that such a size fails, the program says so itself and does not cover it.
    """
    wrong: list[Counterexample] = []
    for symbol, size, probe in _small_sizes(candidate, example):
        reference, answer = observe(original, probe), observe_program(candidate, probe)
        lenient = reference.error is not None and (size == 0 or answer.error is not None)
        guarded = isinstance(answer.error, AssertionError)
        said[f"size {symbol}={size}"] = f"original {reference.did}, folded {answer.did}"
        if not lenient and not guarded:
            call = f"example 0 with size {symbol} = {size}"
            wrong.extend(counterexamples(compare_calls(reference, answer, limits), call, probe, candidate)[:1])
    return wrong


def without_failing_sizes(original: nn.Module, captured: Program, example: Example) -> Program:
    """The captured program, no longer claimed for sizes 0 and 1 at which it raises although the model does not.

    Export infers a size from others by a division that no elements do not allow. What it returns there is compared like
    any other output.
    """
    covered = captured
    for symbol, size, probe in _small_sizes(captured, example):
        answer = observe_program(captured, probe)
        failed = answer.error is not None and not isinstance(answer.error, AssertionError)
        if failed and str(symbol) in captured.dynamic and observe(original, probe).error is None:
            covered = covered.from_size(symbol, size + 1, f"the captured graph {answer.did} at {size}, the model did not")
    return covered


def _small_sizes(program: Program, example: Example) -> Iterator[tuple[sympy.Expr, int, Example]]:
    """Each dynamic size of the token ids, 0 and 1 where the program covers them, and the example cut down to it."""
    inputs = {node.name: node.meta["val"] for node in program.input_nodes()}
    symbols = {size_expression(s) for name in program.tokens for s in inputs[name].shape if static_size(s) is None}
    for symbol in sorted(symbols, key=str):
        for size in range(program.least_size(symbol), 2):
            yield symbol, size, resized(program, example, symbol, size)


def admitted_ranks(
    original: nn.Module, candidate: Program, examples: Sequence[Example], limits: Limits
) -> dict[str, tuple[int, ...]]:
    """Numbers of dimensions of ids for which original and candidate were seen to agree, the captured one included."""
    admitted = {node.name: {node.meta["val"].dim()} for node in candidate.input_nodes() if node.name in candidate.tokens}
    if len(admitted) != 1:
        return {name: tuple(ranks) for name, ranks in admitted.items()}
    (name, ranks) = next(iter(admitted.items()))
    for rank in set(RANKS) - ranks:
        probes = [probe for example in examples for probe in in_rank(candidate, example, name, rank)]
        if probes and _agree_on(probes, original, candidate, limits):
            ranks.add(rank)
    return {name: tuple(sorted(ranks))}


def _agree_on(probes: Sequence[Example], original: nn.Module, candidate: Program, limits: Limits) -> bool:
    """Whether the original answers every call, and the candidate as it does."""
    calls = [(observe(original, probe), observe_program(candidate, probe)) for probe in probes]
    return all(reference.error is None and compare_calls(reference, answer, limits).agree for reference, answer in calls)


def admitted_kinds(
    original: nn.Module, candidate: Program, examples: Sequence[Example], limits: Limits
) -> dict[str, frozenset[Kind]]:
    """Kinds of inputs on which candidate and original were compared: those of the examples, and other dtypes of token ids.

    Another dtype of ids is tried on the first example, and on the last ids of the domain in its shape.
    """
    given = [example.leaves() for example in examples]
    admitted = {
        node.name: {kind_of(node.meta["val"]), *(kind_of(each[place]) for each in given)}
        for place, node in enumerate(candidate.input_nodes())
        if node.meta["val"] is not None
    }
    for name in candidate.tokens:
        for dtype in set(ID_DTYPES) - admitted[name]:
            if _agree_on(in_dtype(candidate, examples[0], name, dtype), original, candidate, limits):
                admitted[name].add(dtype)
    return {name: frozenset(kinds) for name, kinds in admitted.items()}


def admitted_layouts(
    original: nn.Module, candidate: Program, examples: Sequence[Example], limits: Limits
) -> dict[str, frozenset[bool]]:
    """Whether inputs were contiguous where candidate and original were compared: in the examples, and otherwise.

    A trace takes what a model asks of strides, and whether a view of other sizes needs a copy, from the example. How outputs
    lie in memory is not compared.
    """
    given = [example.leaves() for example in examples]
    admitted = {
        node.name: {each[place].is_contiguous() for each in given if isinstance(each[place], torch.Tensor)}
        for place, node in enumerate(candidate.input_nodes())
        if isinstance(node.meta["val"], torch.Tensor)
    }
    for name, layouts in admitted.items():
        probe = laid_out_otherwise(candidate, examples[0], name)
        if probe is None or _raise_or_agree(observe(original, probe), observe_program(candidate, probe), limits):
            layouts |= {True, False}
    return {name: frozenset(layouts) for name, layouts in admitted.items()}


def _raise_or_agree(reference: Observation, answer: Observation, limits: Limits) -> bool:
    agree = compare_calls(values_of(reference), values_of(answer), limits).agree
    return agree or (reference.error is not None and answer.error is not None)
