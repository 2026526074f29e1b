"""Seconds to choose tables for a token-only graph of thousands of nodes: `python benchmarks/choice_runtime.py [nodes]`.

Prints the time of the whole choice (facts given: candidates, weights, distinct rows, minimum cut, parts) for a model
of diamonds, residual taps and shared weights.
"""

from __future__ import annotations

import sys
import time

import torch
from machine import describe
from torch import nn

from foldfx.analysis import analyze_consumers, analyze_program, capture
from foldfx.passes.choose import Choice


class Diamonds(nn.Module):
    """Chains of scaled sums with a tap every hundred steps; each weight serves two steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.weights = nn.ParameterList(torch.randn(8) for _ in range(steps // 2))
        self.steps = steps

    def forward(self, ids: torch.Tensor) -> list[torch.Tensor]:
        one = other = self.embedding(ids)
        taps = []
        for step in range(self.steps):
            scaled = one * self.weights[step % len(self.weights)]
            one, other = torch.tanh(scaled + other), torch.relu(scaled)
            if step % 100 == 99:
                taps.append(one.cumsum(1))
        return [*taps, other.cumsum(1)]


def main(nodes: int) -> None:
    program = capture(Diamonds(nodes // 4).eval(), (torch.zeros(2, 3, dtype=torch.int64),), dynamic=False)
    facts, consumers = analyze_program(program), analyze_consumers(program)
    began = time.perf_counter()
    choice = Choice(program, facts, consumers)
    tables = choice.tables
    chosen = time.perf_counter() - began
    parts = choice.parts(tables)
    grouped = time.perf_counter() - began - chosen
    count = sum(1 for _ in program.graph.nodes)
    print(f"{describe()}\n\n{count:,} nodes, {len(choice.values):,} of them token-only")
    print(f"{len(tables)} tables in {len(parts)} parts")
    print(f"choice {chosen:.2f} s, parts {grouped:.2f} s")


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] or ["5000"])))
