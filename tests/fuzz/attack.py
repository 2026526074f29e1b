"""What is held against claims: a captured graph is run in many surroundings, and values of equal ids must be equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from foldfx import Facts, Program
from foldfx._torch import is_data_dependent, size_expression, static_size
from foldfx.analysis import Fact
from foldfx.analysis.rows import Feature, TokenAxis

Inputs = dict[str, Tensor]

RELATIVE = {torch.float32: 1e-3, torch.bfloat16: 8e-2, torch.float16: 8e-2}
"""How far values of equal ids may differ, by the largest; float64 and what is no float: `EXACT`."""

EXACT = 1e-6


class Recorder(Interpreter):
    """Runs a captured graph and keeps every value, as it was when it was computed."""

    def values(self, inputs: Inputs) -> dict[Node, Any]:
        self.seen: dict[Node, Any] = {}
        with torch.no_grad():
            self.run(*inputs.values())
        return self.seen

    def run_node(self, n: Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def admitted(program: Program, inputs: Inputs) -> bool:
    """Whether the captured graph takes this call; export may have fixed sizes and strides that the model leaves open."""
    try:
        with torch.no_grad():
            program.module(*_copied(inputs).values())
    except (AssertionError, RuntimeError, IndexError):  # IndexError: a fixed index beyond a shorter axis
        return False
    return True


def claims(facts: Facts) -> Iterator[tuple[Node, Fact]]:
    """The values said to be constant or token-only, with a layout of sizes that the inputs give."""
    for node, fact in facts.items():
        is_value = node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
        if is_value and fact.rows is not None and not any(map(is_data_dependent, node.meta["val"].shape)):
            yield node, fact


def symbols(program: Program, inputs: Inputs) -> dict[sympy.Expr, int]:
    """The sizes that the inputs give to the program's symbols."""
    sizes = [
        pair
        for node, tensor in zip(program.input_nodes(), inputs.values(), strict=True)
        for pair in zip(node.meta["val"].shape, tensor.shape, strict=True)
    ]
    return {size_expression(size): given for size, given in sizes if static_size(size) is None}


def belonging(fact: Fact, inputs: Inputs, given: dict[sympy.Expr, int], vocabulary: int) -> Tensor:
    """For every element in order, one number for the tokens and the feature that the layout says it belongs to."""
    assert fact.rows is not None
    atoms = [atom for dim in fact.rows for atom in dim]
    sizes = [int(atom.size.subs(given)) for atom in atoms]
    index = {name: [torch.zeros(sizes, dtype=torch.long) for _ in inputs[name].shape] for name in fact.tokens}
    number = torch.zeros(sizes, dtype=torch.long)
    for place, (atom, size) in enumerate(zip(atoms, sizes, strict=True)):
        along = torch.arange(size).view(-1, *[1] * (len(sizes) - place - 1))
        if isinstance(atom, TokenAxis):
            for name, dim in atom.axes:
                index[name][dim] += along * int(atom.stride.subs(given))
        elif isinstance(atom, Feature):
            number = number * size + along
    for name, place_of_row in index.items():
        number = number * vocabulary + inputs[name][tuple(place_of_row)]
    return number.flatten()


def disagreement(number: Tensor, value: Tensor, relative: float = EXACT) -> str:
    """How far elements (or rows) of the same number differ, in words; empty where they agree."""
    number = number.unique(return_inverse=True)[1]
    table = value.new_zeros((int(number.max()) + 1, *value.shape[1:]))
    table[number] = value
    error = value - table[number]
    worst, distance = error.abs().max().item(), (error.norm() / value.norm().clamp_min(1e-30)).item()
    agree = worst <= relative * value.abs().max().item() and distance <= relative
    return "" if agree else f"max-abs {worst:.3g}, relative L2 {distance:.3g}"


def unsound(program: Program, facts: Facts, calls: Sequence[Inputs], vocabulary: int) -> Iterator[tuple[Node, str]]:
    """Claims that do not hold over these calls, each with how far off it is."""
    runs = [Recorder(program.module).values(_copied(inputs)) for inputs in calls]
    given = [symbols(program, inputs) for inputs in calls]
    tolerance = EXACT
    for node in program.graph.nodes:  # rounding of low precision stays in what is computed from it
        value = node.meta.get("val")
        tolerance = max(tolerance, RELATIVE.get(value.dtype, EXACT)) if isinstance(value, Tensor) else tolerance
    for node, fact in claims(facts):
        numbers = [belonging(fact, inputs, sizes, vocabulary) for inputs, sizes in zip(calls, given, strict=True)]
        values = torch.cat([run[node].double().flatten() for run in runs])
        if values.numel() and (wrong := disagreement(torch.cat(numbers), values, tolerance)):
            yield node, wrong


def _copied(inputs: Inputs) -> Inputs:
    return {name: value.clone() for name, value in inputs.items()}  # strides are kept
