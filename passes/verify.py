"""Complete outputs of a candidate against the original: on the user's examples, and on calls made up around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import sympy
import torch
from torch import nn

from .._torch import flatten_inputs, size_expression, static_size, tree_flatten
from ..analysis.example import Example
from ..analysis.program import Program
from ..errors import ExampleError
from .check_tables import check_tables
from .compare import Comparison, Figures, Limits, compare_trees
from .evidence import LayoutEvidence, Verdict, Verification
from .observe import Observation, observe, observe_program
from .rewrite import Rewrite
from .tabulate import Progress

RANKS = (0, 1, 2, 3)


def compare_calls(reference: Observation, candidate: Observation, limits: Limits) -> Comparison:
    """Outputs, inputs after the call, buffers written, and exceptions (by class)."""
    if reference.error is not None or candidate.error is not None:
        if type(reference.error) is type(candidate.error):
            return Comparison((), Figures())
        what = "returned a value" if candidate.error is None else f"raised {candidate.error!r}"
        text = f"{what} where the original {_did(reference)}"
        return Comparison((text,), Figures(exact=False, bitwise=False))
    parts = [
        compare_trees(reference.outputs, candidate.outputs, limits, "output "),
        compare_trees(reference.inputs, candidate.inputs, limits, "input after the call "),
        compare_trees(dict(reference.buffers), dict(candidate.buffers), limits, "buffer "),
    ]
    worst = Figures()
    for part in parts:
        worst = worst.worst(part.figures)
    return Comparison(tuple(text for part in parts for text in part.differences), worst)


def _did(observation: Observation) -> str:
    return "returned a value" if observation.error is None else f"raised {type(observation.error).__name__}"


class Verifier:
    """Decides whether candidates may stand in for one original.

    What the original does on the examples, and what was found for a rewrite's tables, is computed once.

    Args:
        original: the user's model.
        examples: calls whose complete outputs are compared; the original must be able to run them.
        limits: for float values.
        progress: called during the table checks.

    Attributes:
        compared: how many candidates' complete outputs were compared so far.
    """

    def __init__(self, original: nn.Module, examples: Sequence[Example], limits: Limits, progress: Progress) -> None:
        self._original = original
        self._examples = examples
        self._limits = limits
        self._progress = progress
        self._tables: dict[str, tuple[list[LayoutEvidence], list[str]]] = {}
        self._repeatable: dict[int, bool] = {}
        self.compared = 0

    @cached_property
    def _references(self) -> list[Observation]:
        references = []
        for place, example in enumerate(self._examples):
            reference, again = observe(self._original, example), observe(self._original, example)
            if reference.error is not None:
                raise ExampleError(f"the model fails on example {place}: {reference.error!r}") from reference.error
            self._repeatable[place] = compare_calls(reference, again, self._limits).agree
            references.append(reference)
        return references

    def tables(self, rewrite: Rewrite, module: nn.Module) -> tuple[list[LayoutEvidence], list[str]]:
        """The evidence for a rewrite's tables and a sentence for each that is beyond the limits."""
        if rewrite.name not in self._tables:
            self._tables[rewrite.name] = check_tables(rewrite, module, self._limits, self._progress)
        return self._tables[rewrite.name]

    def outputs(self, candidate: Program) -> tuple[list[str], Figures]:
        """Differences and worst figures of the complete outputs, on the examples and on small sizes.

        Raises:
            ExampleError: the original fails on an example, or an example's structure is not the captured one.
        """
        differences, worst, _ = self._compare(candidate)
        return differences, worst

    def _compare(self, candidate: Program) -> tuple[list[str], Figures, dict[str, str]]:
        """`outputs`, and what each side did on the small sizes."""
        for place, example in enumerate(self._examples):
            _check_structure(candidate, example, place)
        self.compared += 1
        differences: list[str] = []
        worst = Figures()
        for place, reference in enumerate(self._references):
            if self._repeatable[place]:
                found = compare_calls(reference, observe_program(candidate, self._examples[place]), self._limits)
                worst = worst.worst(found.figures)
                differences += [f"example {place}: {text}" for text in found.differences]
        said: dict[str, str] = {}
        if self._is_repeatable:
            said, wrong = _small_sizes(self._original, candidate, self._examples, self._limits)
            differences += wrong
        return differences, worst, said

    @property
    def _is_repeatable(self) -> bool:
        return all(self._repeatable.values())

    def verify(self, candidate: Program, rewrites: Sequence[Rewrite]) -> Verification:
        """The verdict on a lowered candidate, with everything it rests on.

        Raises:
            ExampleError: as `outputs`.
        """
        differences, worst, sizes = self._compare(candidate)
        layouts: list[LayoutEvidence] = []
        for rewrite in rewrites:
            evidence, failures = self.tables(rewrite, candidate.module)
            layouts += evidence
            differences += failures
        outside: dict[str, str] = {}
        if self._is_repeatable:
            outside, wrong = _outside(self._original, candidate, self._examples[0], self._limits)
            differences += wrong
        unsure = [
            f"example {place}: the original differs from itself when run twice"
            for place, repeatable in self._repeatable.items()
            if not repeatable
        ]
        verdict = Verdict.DIFFERENT if differences else Verdict.UNDECIDED if unsure else Verdict.EQUIVALENT_ON
        ranks = _admitted_ranks(self._original, candidate, self._examples, self._limits)
        because = tuple(differences or unsure)
        return Verification(verdict, because, len(self._examples), worst, tuple(layouts), outside | sizes, ranks, self._limits)


def _check_structure(candidate: Program, example: Example, place: int) -> None:
    try:
        flatten_inputs(candidate.module, example.args, dict(example.kwargs))
    except ValueError as error:
        raise ExampleError(f"example {place} is another kind of call than the captured one: {error}") from error


def _outside(original: nn.Module, candidate: Program, example: Example, limits: Limits) -> tuple[dict[str, str], list[str]]:
    """Ids outside the domain: the candidate must raise what the original raises, and never return another value.

    Where the original returns a value the candidate may raise: such ids are outside the program's contract.
    """
    said: dict[str, str] = {}
    wrong: list[str] = []
    for name, domain in candidate.tokens.items():
        for bad in (domain.size, -1, -domain.size - 1):
            probe = with_tokens(candidate, example, name, lambda ids, bad=bad: _first_replaced(ids, bad))  # type: ignore[misc]
            if probe is None:
                continue
            reference, found = observe(original, probe), observe_program(candidate, probe)
            said[f"{name}={bad}"] = f"original {_did(reference)}, folded {_did(found)}"
            stricter = reference.error is None and isinstance(found.error, IndexError | RuntimeError)
            if not stricter and (difference := compare_calls(reference, found, limits).differences):
                wrong.append(f"{name}={bad}, outside the domain: {difference[0]}")
    return said, wrong


def _small_sizes(
    original: nn.Module, candidate: Program, examples: Sequence[Example], limits: Limits
) -> tuple[dict[str, str], list[str]]:
    """The first example with each dynamic size of the token ids set to 0 and to 1, in every input that has it.

    Where the original raises, the candidate raises as well, or returns no elements for no rows. Where export left a
    guard that such a size fails, the program says so itself and does not cover it.
    """
    said: dict[str, str] = {}
    wrong: list[str] = []
    inputs = {node.name: node.meta["val"] for node in candidate.input_nodes()}
    symbols = {size_expression(s) for name in candidate.tokens for s in inputs[name].shape if static_size(s) is None}
    for symbol in sorted(symbols, key=str):
        for size in (0, 1):
            if size < _least(candidate, str(symbol)):
                continue
            probe = _resized(candidate, examples[0], symbol, size)
            reference, found = observe(original, probe), observe_program(candidate, probe)
            lenient = reference.error is not None and (size == 0 or found.error is not None)
            guarded = isinstance(found.error, AssertionError)
            said[f"size {symbol}={size}"] = f"original {_did(reference)}, folded {_did(found)}"
            if not lenient and not guarded and (difference := compare_calls(reference, found, limits).differences):
                wrong.append(f"example 0 with size {symbol} = {size}: {difference[0]}")
    return said, wrong


def _least(candidate: Program, symbol: str) -> int:
    """The smallest size the capture allows for a symbol."""
    text = candidate.dynamic.get(symbol, "VR[2, int_oo]")
    return int(text.partition("[")[2].partition(",")[0])


def _resized(program: Program, example: Example, symbol: sympy.Expr, size: int) -> Example:
    """Every dimension of that symbolic size cut down to `size`."""
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    for place, node in enumerate(program.input_nodes()):
        if isinstance(leaves[place], torch.Tensor):
            for dim, traced in enumerate(node.meta["val"].shape):
                if size_expression(traced) == symbol and leaves[place].shape[dim] > size:
                    leaves[place] = leaves[place].narrow(dim, 0, size)
    args, kwargs = spec.unflatten(leaves)
    return Example(args, kwargs)


def _first_replaced(ids: torch.Tensor, token: int) -> torch.Tensor | None:
    if not ids.numel() or not torch.iinfo(ids.dtype).min <= token <= torch.iinfo(ids.dtype).max:
        return None
    changed = ids.clone()
    changed.view(-1)[0] = token
    return changed


def with_tokens(
    program: Program, example: Example, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> Example | None:
    """The example with one token input replaced; None where `change` declines."""
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    place = [node.name for node in program.input_nodes()].index(name)
    changed = change(leaves[place].contiguous())
    if changed is None:
        return None
    leaves[place] = changed
    args, kwargs = spec.unflatten(leaves)
    return Example(args, kwargs)


def _admitted_ranks(
    original: nn.Module, candidate: Program, examples: Sequence[Example], limits: Limits
) -> dict[str, tuple[int, ...]]:
    """Numbers of dimensions of ids for which original and candidate were seen to agree, the captured one included."""
    admitted = {node.name: {node.meta["val"].dim()} for node in candidate.input_nodes() if node.name in candidate.tokens}
    if len(admitted) != 1:
        return {name: tuple(ranks) for name, ranks in admitted.items()}
    (name, ranks) = next(iter(admitted.items()))
    for rank in RANKS:
        probes = [probe for example in examples if (probe := _in_rank(candidate, example, name, rank)) is not None]
        calls = [(observe(original, probe), observe_program(candidate, probe)) for probe in probes]
        if probes and all(ref.error is None and compare_calls(ref, found, limits).agree for ref, found in calls):
            ranks.add(rank)
    return {name: tuple(sorted(ranks))}


def _in_rank(program: Program, example: Example, name: str, rank: int) -> Example | None:
    """The example with every token axis merged and dealt out again in `rank` dimensions, in every input that has them.

    None where an input's axes do not start with those of the token ids.
    """
    inputs = program.input_nodes()
    traced = next(node.meta["val"] for node in inputs if node.name == name)
    axes = [size_expression(size) for size in traced.shape]
    leaves, spec = tree_flatten((example.cloned().args, dict(example.cloned().kwargs)))
    changed: list[object] = []
    for node, leaf in zip(inputs, leaves, strict=True):
        if not isinstance(leaf, torch.Tensor) or not any(size_expression(s) in axes for s in node.meta["val"].shape):
            changed.append(leaf)
            continue
        if [size_expression(size) for size in node.meta["val"].shape[: len(axes)]] != axes or not leaf.numel():
            return None
        rest = leaf.shape[len(axes) :]
        flat = leaf.reshape(-1, *rest)
        changed.append(flat[0] if rank == 0 else flat.reshape(*([1] * (rank - 1)), *flat.shape))
    args, kwargs = spec.unflatten(changed)
    return Example(args, kwargs)
