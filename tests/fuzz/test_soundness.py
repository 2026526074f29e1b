"""Every claim of the dependence analysis on random graphs, against what the graphs compute.

A graph is a few random operations over embedded ids, kept as source text so that a failure can be pasted. Several
graphs are captured together. A value that is called constant or token-only is then computed in several surroundings:
its layout says to which tokens and which feature every element belongs, and elements of the same tokens and feature
must be equal, wherever they stand and whoever their neighbours are.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import Interpreter, Node

from foldfx import Facts, Program, TokenInput, capture
from foldfx._torch import size_expression, static_size
from foldfx.analysis import Fact, analyze_program
from foldfx.analysis.rows import Feature, TokenAxis
from foldfx.errors import CaptureError
from foldfx.passes.tables.region import Region, RegionError, ancestors
from foldfx.passes.tables.runner import RegionRunner

Inputs = dict[str, Tensor]

VOCABULARY, STEPS, RELATIVE = 5, 4, 1e-6

# Sizes of token axes among them, so that a constant varies over positions as easily as over features.
CONSTANTS = {"w8": (8,), "w4": (4,), "w2": (2,), "w48": (4, 8), "w88": (8, 8), "w44": (4, 4), "w24": (2, 4), "table": (5, 8)}

CATALOGUE: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "operations.toml").read_text())


class Composed(nn.Module):
    """Runs source lines over embedded ids; returns the value of every line."""

    def __init__(self, graphs: Sequence[Sequence[str]] = ()) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(0)
        for name, size in CONSTANTS.items():
            self.register_buffer(name, torch.randn(size, dtype=torch.float64, generator=numbers))
        self.graphs = [[compile(line.split(" = ")[1], line, "eval") for line in graph] for graph in graphs]
        self.eval()

    def scope(self, ids: Tensor, others: Tensor) -> dict[str, Any]:
        values = {"ids": ids, "others": others, "v0": F.embedding(ids, self.table), "u0": F.embedding(others, self.table)}
        return {"torch": torch, "F": F, **values, **dict(self.named_buffers())}

    def forward(self, ids: Tensor, others: Tensor) -> list[Tensor]:
        results = []
        for graph in self.graphs:
            scope = self.scope(ids, others)
            for place, code in enumerate(graph, 1):
                scope[f"v{place}"] = eval(code, scope)
                results.append(scope[f"v{place}"])
        return results


class Writer:
    """Writes one random graph: every line must run, and stay finite and small, in every surrounding."""

    def __init__(self, rng: random.Random, surroundings: Sequence[Inputs]) -> None:
        model = Composed()
        self.rng = rng
        self.scopes = [model.scope(**inputs) for inputs in surroundings]
        self.static = len({inputs["ids"].shape for inputs in surroundings}) == 1
        self.lines: list[str] = []

    def write(self) -> list[str]:
        while len(self.lines) < STEPS:
            self._try(self._filled(self.rng.choice(CATALOGUE[self.rng.choice([*CATALOGUE])])))
        return self.lines

    def _filled(self, template: str) -> str:
        pool = [f"v{place}" for place in range(len(self.lines) + 1)]
        x = self.rng.choice([pool[-1], self.rng.choice(pool)])
        value = self.scopes[0][x]
        rank = value.dim()
        d, e = (self.rng.randrange(-rank, rank) for _ in range(2))
        return template.format(
            x=x,
            y=self.rng.choice([*pool, "u0"]),
            i=self.rng.choice(["ids", "ids", "others"]),
            c=self.rng.choice([*CONSTANTS]),
            d=d,
            e=e,
            order=self.rng.sample(range(rank), rank),
            shape=self._shape(value.numel()) if self.static else f"*{x}.shape[:{d}], -1, *{x}.shape[{d}:][2:]",
        )

    def _shape(self, left: int) -> list[int]:
        """A random factorisation."""
        shape: list[int] = []
        while left > 1 and len(shape) < 4:
            shape.append(self.rng.choice([factor for factor in range(2, left + 1) if left % factor == 0]))
            left //= shape[-1]
        return [*shape, left]

    def _try(self, line: str) -> None:
        try:
            found = [eval(line, scope) for scope in self.scopes]
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
            return
        if all(map(_fine, found)) and len({value.dim() for value in found}) == 1:
            name = f"v{len(self.lines) + 1}"
            self.lines.append(f"{name} = {line}")
            for scope, value in zip(self.scopes, found, strict=True):
                scope[name] = value


def _fine(value: Tensor) -> bool:
    small = 0 < value.numel() <= 2048 and 0 < value.dim() <= 5
    return value.dtype == torch.float64 and small and bool(value.isfinite().all())


class Recorder(Interpreter):
    """Runs a captured graph and keeps every value."""

    def values(self, inputs: Inputs) -> dict[Node, Any]:
        self.seen: dict[Node, Any] = {}
        with torch.no_grad():
            self.run(*inputs.values())
        return self.seen

    def run_node(self, n: Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


@dataclass
class Case:
    """Random graphs captured together, and the inputs to run them on."""

    graphs: list[list[str]]
    program: Program
    surroundings: list[Inputs]
    facts: Facts = field(init=False)

    def __post_init__(self) -> None:
        self.facts = analyze_program(self.program)

    @classmethod
    def random(cls, seed: int, shapes: Sequence[tuple[int, ...]], count: int, attempts: int = 5) -> Case:
        """`count` graphs for ids of these shapes; sizes are symbols where the shapes differ.

        Export cannot solve every system of sizes, nor indices that it must read; then other graphs are drawn.
        """
        rng = random.Random(seed)
        surroundings = [{name: torch.randint(VOCABULARY, shape) for name in ("ids", "others")} for shape in shapes]
        dynamic = len(set(shapes)) > 1 and {name: [Dim.AUTO] * len(shapes[0]) for name in surroundings[0]}
        tokens = [TokenInput(name, VOCABULARY) for name in surroundings[0]]
        graphs = [Writer(rng, surroundings).write() for _ in range(count)]
        try:
            program = capture(Composed(graphs), tuple(surroundings[0].values()), tokens=tokens, dynamic=dynamic)
        except CaptureError:
            if attempts == 1:
                raise
            return cls.random(rng.getrandbits(32), shapes, count, attempts - 1)
        return cls(graphs, program, [inputs for inputs in surroundings if _admitted(program, inputs)])

    def source(self, node: Node) -> str:
        """The lines up to the first one that needs `node`, and what the analysis says."""
        lines = [graph[: place + 1] for graph in self.graphs for place in range(len(graph))]
        outputs = self.program.graph.output_node().args[0]
        needing = [text for text, output in zip(lines, outputs, strict=True) if node in ancestors([output])]
        return "\n".join([*(needing or [["(read by no line)"]])[0], self.facts.explain(node)])

    def claims(self) -> Iterator[tuple[Node, Fact]]:
        for node, fact in self.facts.items():
            if node.op == "call_function" and fact.rows is not None and isinstance(node.meta["val"], Tensor):
                yield node, fact


def _admitted(program: Program, inputs: Inputs) -> bool:
    """Whether the captured graph takes these sizes; export may have fixed some that the lines leave open."""
    try:
        program.module(*inputs.values())
    except AssertionError:
        return False
    return True


def _sizes(program: Program, inputs: Inputs) -> Iterator[tuple[Any, int]]:
    for node, tensor in zip(program.input_nodes(), inputs.values(), strict=True):
        yield from zip(node.meta["val"].shape, tensor.shape, strict=True)


def _symbols(program: Program, inputs: Inputs) -> dict[sympy.Expr, int]:
    return {size_expression(size): given for size, given in _sizes(program, inputs) if static_size(size) is None}


def belonging(fact: Fact, inputs: Inputs, symbols: dict[sympy.Expr, int]) -> Tensor:
    """For every element in order, one number for the tokens and the feature that the layout says it belongs to."""
    assert fact.rows is not None
    atoms = [atom for dim in fact.rows for atom in dim]
    sizes = [int(atom.size.subs(symbols)) for atom in atoms]
    index = {name: [torch.zeros(sizes, dtype=torch.long) for _ in inputs[name].shape] for name in fact.tokens}
    number = torch.zeros(sizes, dtype=torch.long)
    for place, (atom, size) in enumerate(zip(atoms, sizes, strict=True)):
        along = torch.arange(size).view(-1, *[1] * (len(sizes) - place - 1))
        if isinstance(atom, TokenAxis):
            for name, dim in atom.axes:
                index[name][dim] += along * int(atom.stride.subs(symbols))
        elif isinstance(atom, Feature):
            number = number * size + along
    for name, place_of_row in index.items():
        number = number * VOCABULARY + inputs[name][tuple(place_of_row)]
    return number.flatten()


def disagreement(number: Tensor, value: Tensor) -> str:
    """How far elements (or rows) of the same number differ, in words; empty where they agree."""
    table = value.new_zeros((int(number.max()) + 1, *value.shape[1:]))
    table[number] = value
    error = value - table[number]
    worst, relative = error.abs().max().item(), (error.norm() / value.norm().clamp_min(1e-30)).item()
    agree = worst <= RELATIVE * value.abs().max().item() and relative <= RELATIVE
    return "" if agree else f"max-abs {worst:.3g}, relative L2 {relative:.3g}"


def check_layouts(case: Case) -> None:
    runs = [Recorder(case.program.module).values(inputs) for inputs in case.surroundings]
    for node, fact in case.claims():
        numbers = [belonging(fact, inputs, _symbols(case.program, inputs)) for inputs in case.surroundings]
        values = [run[node].double().flatten() for run in runs]
        wrong = disagreement(torch.cat(numbers), torch.cat(values))
        assert not wrong, f"{node.name} is not as it is said to lie: {wrong}\n{case.source(node)}"


def check_rows(case: Case) -> int:
    """What tables are made of: rows that a runner yields; returns how many values it could run."""
    inputs = {node.name: node for node in case.program.input_nodes()}
    ran = 0
    for node, fact in case.claims():
        for name in fact.tokens if len(fact.tokens) == 1 else ():
            try:
                run = RegionRunner(Region(case.program, case.facts, (inputs[name],)), [node])
                rows = [run.rows({name: surrounding[name]})[0].double() for surrounding in case.surroundings]
            except RegionError:
                continue
            wrong = disagreement(torch.cat([surrounding[name].flatten() for surrounding in case.surroundings]), torch.cat(rows))
            assert not wrong, f"rows of {node.name} differ for one token: {wrong}\n{case.source(node)}"
            ran += 1
    return ran


def check(case: Case) -> None:
    for node, fact in case.facts.items():
        assert "please report this" not in fact.because.text, f"a rule is defective at {node.name}\n{case.source(node)}"
    check_layouts(case)
    assert check_rows(case) > len(case.graphs) / 2


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("shape", [(8,), (2, 4), (4, 4), (1, 8), (2, 2, 2)], ids=str)
def test_claims_hold_for_static_sizes(shape: tuple[int, ...], part: int, seed: int) -> None:
    check(Case.random(seed, [shape] * 4, 11))


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("shapes", [[(4,), (6,)], [(2, 4), (3, 5)], [(2, 3, 4), (3, 2, 5)]], ids=str)
def test_claims_hold_for_symbolic_sizes(shapes: list[tuple[int, ...]], part: int, seed: int) -> None:
    check(Case.random(seed, shapes * 2, 4))
