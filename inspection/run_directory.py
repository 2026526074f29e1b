"""The directory of one run: every graph as text, as an outline and as a diff, the report, and scripts for what went wrong.

    00-captured.py                 the graph as it was captured, as runnable text; it says nothing that changes between runs
    00-captured.json               the same as data, for `foldfx diff`
    01-after-fold_tokens.py, .json and so on, one for each pass, then for lowering, and for rollback where there was one
    01-after-fold_tokens.diff      what that step changed, in the style of a unified diff
    facts.json                     what every value of the captured graph depends on, and why
    report.json                    what was done, refused and shown; `report.schema.json` in the package describes it
    report.html                    the same as a page, with the graphs of every step side by side and the facts
    reproducers/0/reproduce.py     a script for each counterexample that can be written as one
    run.json                       when, how long and with which versions; nothing else depends on them

No weights are written, but for those that a reproducer needs; source lines and names of the model are.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ..analysis.facts import Facts
from ..analysis.fingerprint import Digests
from ..analysis.program import Program
from .diff import Diff, diff_graphs
from .diff_text import diff_text
from .facts_view import facts_to_dict
from .folder import new_folder
from .graph_text import graph_text
from .html import render
from .memory_view import memory_to_dict
from .outline import Outline
from .outline_of import outline_of
from .report import SCHEMA_VERSION, Report
from .run_layout import ENVIRONMENT, FACTS, PAGE, REPORT, REPRODUCERS, graph_stem

CLASS_NAME = "FoldedProgram"
"""What the graphs are called in their texts."""


def write_run(
    folder: Path,
    steps: Sequence[tuple[str, Program]],
    facts: Facts,
    report: Report,
    reproducers: Sequence[Callable[[Path], object]],
    measured: Mapping[str, Any],
) -> None:
    """Write the directory of a run; it appears whole or not at all.

    Args:
        folder: absent or empty.
        steps: what was done and the program it left, first "captured".
        facts: those of the captured program.
        report: the run's. What it measured of time goes to run.json.
        reproducers: for each counterexample, what writes its script to a folder, or raises ValueError where it cannot.
        measured: JSON-serialisable figures that are others in every run, for run.json.

    Raises:
        FileExistsError: `folder` is a file or holds something.
        DiffError: a graph carries a constant that has no text.
    """
    data = {name: value for name, value in report.to_dict().items() if name not in report.MEASURED}
    with new_folder(folder) as partial:
        outlines = [(name, outline_of(program, _stem(number, name))) for number, (name, program) in enumerate(steps)]
        diffs = [diff_graphs(before, after) for (_, before), (_, after) in pairwise(outlines)]
        graphs = _write_graphs(partial, steps, outlines, diffs)
        scripts = [_write_reproducer(partial, number, write) for number, write in enumerate(reproducers)]
        found, memory = facts_to_dict(facts), memory_to_dict(steps[0][1])
        _write_json(partial / FACTS, found)
        (partial / PAGE).write_text(render(data, outlines, found, memory=memory, diffs=diffs), encoding="utf-8")
        _write_json(partial / REPORT, {**data, "graphs": graphs, "reproducers": scripts})
        _write_json(partial / ENVIRONMENT, {**_environment(), **report.measured, **measured})


def _stem(number: int, step: str) -> str:
    return graph_stem(number, re.sub(r"[^\w.-]+", "_", step))


def _write_graphs(
    folder: Path, steps: Sequence[tuple[str, Program]], outlines: Sequence[tuple[str, Outline]], diffs: Sequence[Diff]
) -> list[dict[str, Any]]:
    digests = Digests()
    found = []
    for number, ((step, program), (_, outline)) in enumerate(zip(steps, outlines, strict=True)):
        stem = _stem(number, step)
        _write_json(folder / f"{stem}.json", outline.to_dict(digests))
        entry: dict[str, Any] = {"step": step, "graph": f"{stem}.json", **_write_text(folder / f"{stem}.py", program)}
        if number > 0:
            diff = diffs[number - 1]
            (folder / f"{stem}.diff").write_text(text + "\n" if (text := diff_text(diff)) else "", encoding="utf-8")
            entry |= {"diff": f"{stem}.diff", "counts": diff.counts, "provenance": [each.to_dict() for each in diff.lineage]}
        found.append(entry)
    return found


def _write_text(path: Path, program: Program) -> dict[str, Any]:
    """Write the graph's text; where it has none, say why."""
    try:
        text = graph_text(program.module, CLASS_NAME)
    except ValueError as error:
        return {"text": None, "problem": str(error)}
    path.write_text(text, encoding="utf-8")
    return {"text": path.name, "problem": ""}


def _write_reproducer(folder: Path, number: int, write: Callable[[Path], object]) -> dict[str, Any]:
    place = f"{REPRODUCERS}/{number}"
    try:
        write(folder / place)
    except ValueError as error:
        return {"script": None, "problem": str(error)}
    return {"script": f"{place}/reproduce.py", "problem": ""}


def _environment() -> dict[str, Any]:
    try:
        own = version("foldfx")
    except PackageNotFoundError:
        own = "not installed"
    return {
        "schema_version": SCHEMA_VERSION,
        "foldfx": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
