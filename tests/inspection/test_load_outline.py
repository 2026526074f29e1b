"""What is no side of a diff is refused, with the reason and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from foldfx.errors import DiffError
from foldfx.inspection.diff import diff_graphs


def shifted(by: object) -> GraphModule:
    graph = Graph()
    graph.output(graph.call_function(torch.add, (graph.placeholder("x"), 1)))
    module = GraphModule(nn.Module(), graph)
    module.graph.find_nodes(op="call_function", target=torch.add)[0].update_arg(1, by)
    return module


def endless() -> GraphModule:
    module = shifted(1)
    module.graph.erase_node(module.graph.output_node())
    return module


FILES = {
    "not.pt2": ("no", "torch.export cannot load"),
    "text.txt": ("no", "is not JSON"),
    "list.json": ("[]", "holds a list"),
    "old.json": ('{"outline_version": 0}', "has outline version 0, this foldfx reads 1"),
    "half.json": ('{"outline_version": 1, "values": [{}]}', "is not an outline of a graph"),
    "report.json": ("{}", "is a report, not a graph"),
    "facts.json": ("{}", "is part of a run, not a graph"),
    "run.json": ("{}", "is part of a run, not a graph"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_graph(name: str, tmp_path: Path) -> None:
    text, why = FILES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(DiffError, match=why):
        diff_graphs(shifted(1), tmp_path / name)


@pytest.mark.parametrize(
    ("side", "why"),
    [
        (nn.Linear(2, 2), "cannot compare a Linear; pass a Program, GraphModule or ExportedProgram"),
        (shifted(object()), "node add carries a object whose text is a memory address"),
        (endless(), "the graph has no output"),
        ("absent", "there is no absent; name a .pt2 file"),
    ],
)
def test_what_is_no_graph(side: Any, why: str) -> None:
    with pytest.raises(DiffError, match=why):
        diff_graphs(shifted(1), side)


def test_a_folder_without_graphs(tmp_path: Path) -> None:
    with pytest.raises(DiffError, match=r"holds no graphs \(NN-….json\), so it is not a run directory"):
        diff_graphs(shifted(1), tmp_path)
