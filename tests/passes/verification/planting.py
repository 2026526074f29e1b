"""What planted faults are planted into: a model, a pass that edits the graph, and ways to run a reproducer."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import foldfx
from foldfx.passes import FoldTokens, Outcome, PassContext, PassResult, Pipeline, Status
from foldfx.passes.builder import Builder

aten = torch.ops.aten
VOCABULARY, KINDS, WIDTH, OUT = 11, 9, 16, 24
SEEN = 6
"""The examples use ids below this one only."""


class Model(nn.Module):
    """Two regions, outputs with memory of their own, a float and an int one computed on, and a count of the calls."""

    calls: Tensor

    def __init__(self, views: bool = False) -> None:
        super().__init__()
        self.one, self.other = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(KINDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)
        self.scale = nn.Parameter(torch.rand(OUT) + 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.views = views
        self.eval()

    def forward(self, ids: Tensor, kinds: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        scores = torch.relu(self.up(self.one(ids))) * self.scale + hidden
        self.calls += 1
        return {
            "scores": scores,
            "again": scores.view(-1) if self.views else scores.clone(),
            "sums": self.down(self.other(kinds)).cumsum(1),
            "given": hidden.clone(),
            "state": self.scale.clone(),
            "top": scores.argmax(-1),
        }


def examples() -> list[foldfx.Example]:
    shape = (2, 3)
    calls = [(torch.randint(SEEN, shape), torch.randint(KINDS, shape), torch.randn(*shape, OUT)) for _ in range(2)]
    return [foldfx.Example(call) for call in calls]


def compiled(model: nn.Module, *more: Any) -> foldfx.Result:
    return foldfx.compile(model, examples(), pipeline=Pipeline([FoldTokens(), *more]), dynamic=False)


def run(script: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The script's exit code, run in this process."""
    monkeypatch.syspath_prepend(script.parent)
    for name in ("reference", "candidate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    for name in ("reference", "candidate"):
        sys.modules.pop(name, None)
    assert isinstance(end.value.code, int)
    return end.value.code


def run_in_a_process(script: Path) -> subprocess.CompletedProcess[str]:
    typing = Path(foldfx.__file__).resolve().parent / ".typing"
    environment = os.environ | {"PYTHONPATH": str(typing), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)


def without_a_counterexample(result: foldfx.Result, folder: Path) -> bool:
    with pytest.raises(IndexError, match="no counterexample"):
        result.write_reproducer(folder)
    return result.accepted and result.counterexamples == () and not folder.exists()


class Edit:
    """A pass with one rewrite: it changes the graph, and where it is told to, what the program does."""

    name: ClassVar[str] = "edit"

    def __init__(self, change: Change, fault: bool) -> None:
        self.change, self.fault = change, fault

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        rewrite = f"edit: {self.change.__name__}"
        if not context.fuel.admits(rewrite):
            reason = context.fuel.left_out.get(rewrite, "not asked for")
            return PassResult(program, (Outcome(self.name, Status.REJECTED, rewrite, reason),))
        context.fuel.take(rewrite)
        self.change(program, self.fault)
        program.graph.eliminate_dead_code()
        program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, rewrite, "done"),))


Change = Callable[[foldfx.Program, bool], None]
"""Edits a graph, with the fault or where it is told False without."""


def returned(program: foldfx.Program, leaf: str) -> Node:
    """The node the program returns as one of the leaves of `Model`."""
    leaves = program.graph.output_node().args[0]
    return leaves[["scores", "again", "sums", "given", "state", "top"].index(leaf)]  # type: ignore[index, return-value]


def return_instead(program: foldfx.Program, old: Node, new: Node) -> None:
    program.graph.output_node().replace_input_with(old, new)


def add(program: foldfx.Program, after: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call right after a node."""
    node = Builder(program.module, after, "edit").call(target, *args, **kwargs)
    after.append(node)
    return node


def an_integer_is_off_by_one(program: foldfx.Program, fault: bool) -> None:
    top = returned(program, "top")
    return_instead(program, top, add(program, top, aten.add.Tensor, top, int(fault)))
