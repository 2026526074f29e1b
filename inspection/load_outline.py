"""What a diff may be asked to compare, as outlines: graphs at hand, .pt2 files, run directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ..analysis.program import Program
from ..errors import DiffError
from .outline import Outline
from .outline_of import outline_of
from .run_layout import ENVIRONMENT, FACTS, REPORT, graphs_of

PROGRAM = "program.pt2"
"""The exported program in a directory that holds one with its tables."""

Comparable = Outline | Program | GraphModule | ExportedProgram | str | Path


def as_outline(side: Comparable, label: str) -> Outline:
    """One side of a diff.

    Args:
        side: see `diff_graphs`.
        label: what to call a graph that has no path.

    Raises:
        DiffError: the path names nothing that can be compared, or the graph cannot be.
    """
    if isinstance(side, Outline):
        return side
    if isinstance(side, Program | GraphModule | ExportedProgram):
        return outline_of(side, label)
    if not isinstance(side, str | Path):
        raise DiffError(
            f"cannot compare a {type(side).__name__}; pass a Program, GraphModule or ExportedProgram (foldfx.capture makes the "
            "first of a model), or the path of a .pt2 file or a run directory"
        )
    path = Path(side)
    if (exported := path / PROGRAM).is_file():
        return _exported(exported)
    if path.is_dir():
        return load_outline(graphs_of(path)[-1])
    if not path.is_file():
        raise DiffError(f"there is no {path}; name a .pt2 file, a run directory, or a graph in one (its .json file)")
    return _exported(path) if path.suffix == ".pt2" else load_outline(path)


def load_outline(path: Path) -> Outline:
    """A graph of a run directory.

    Raises:
        DiffError: the file is not one.
    """
    if path.name in (REPORT, FACTS, ENVIRONMENT):
        what = "a report" if path.name == REPORT else "part of a run"
        raise DiffError(f"{path} is {what}, not a graph; name the directory, or one of its NN-….json files")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DiffError(f"{path} is not JSON ({error}); name a .pt2 file, a run directory, or a graph in one") from error
    if not isinstance(data, dict):
        raise DiffError(f"{path} holds a {type(data).__name__}, not the outline of a graph; name a graph of a run directory")
    return replace(Outline.from_dict(data, str(path)), label=f"{path.absolute().parent.name}/{path.stem}")


def _exported(path: Path) -> Outline:
    try:
        exported = torch.export.load(path)
    except Exception as error:
        raise DiffError(f"torch.export cannot load {path}: {type(error).__name__}: {error}") from error
    return outline_of(exported, f"{path.absolute().parent.name}/{path.name}")
