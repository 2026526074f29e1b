"""What the files of a run directory are called."""

from __future__ import annotations

from pathlib import Path

from ..errors import DiffError

REPORT = "report.json"
ENVIRONMENT = "run.json"


def graph_stem(number: int, step: str) -> str:
    """The name, without an ending, of the files of one graph: 00-captured, 01-after-fold_tokens, …"""
    return f"{number:02}-{step if number == 0 else f'after-{step}'}"


def graphs_of(folder: Path) -> list[Path]:
    """The outlines in a run directory, first to last.

    Raises:
        DiffError: it holds none.
    """
    found = sorted(folder.glob("[0-9][0-9]*-*.json"), key=lambda path: int(path.name.partition("-")[0]))
    if not found:
        raise DiffError(f"{folder} holds no graphs (NN-….json), so it is not a run directory; write one with run_dir=")
    return found
