"""Every claim of the dependence analysis on random graphs, against what the graphs compute.

A graph is a few random operations over embedded ids, kept as source text so that a failure can be pasted. Several
graphs are captured together. A value that is called constant or token-only is then computed in several surroundings:
its layout says to which tokens and which feature every element belongs, and elements of the same tokens and feature
must be equal, wherever they stand and whoever their neighbours are.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import Node

from foldfx import Facts, Program, TokenInput, capture
from foldfx.analysis import analyze_program
from foldfx.errors import CaptureError
from foldfx.passes.tables.region import Region, RegionError, ancestors
from foldfx.passes.tables.runner import RegionRunner

from .attack import Inputs, admitted, claims, disagreement, unsound

VOCABULARY, STEPS = 5, 4

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
            v=VOCABULARY,
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
        return cls(graphs, program, [inputs for inputs in surroundings if admitted(program, inputs)])

    def source(self, node: Node) -> str:
        """The lines up to the first one that needs `node`, and what the analysis says."""
        lines = [graph[: place + 1] for graph in self.graphs for place in range(len(graph))]
        outputs = self.program.graph.output_node().args[0]
        needing = [text for text, output in zip(lines, outputs, strict=True) if node in ancestors([output])]
        return "\n".join([*(needing or [["(read by no line)"]])[0], self.facts.explain(node)])


def check_layouts(case: Case) -> None:
    for node, wrong in unsound(case.program, case.facts, case.surroundings, VOCABULARY):
        raise AssertionError(f"{node.name} is not as it is said to lie: {wrong}\n{case.source(node)}")


def check_rows(case: Case) -> int:
    """What tables are made of: rows that a runner yields; returns how many values it could run."""
    inputs = {node.name: node for node in case.program.input_nodes()}
    ran = 0
    for node, fact in claims(case.facts):
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
