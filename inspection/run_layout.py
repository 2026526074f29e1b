"""What the files of a run directory are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import DiffError

REPORT = "report.json"
PAGE = "report.html"
ENVIRONMENT = "run.json"
FACTS = "facts.json"
REPRODUCERS = "reproducers"


def graph_stem(number: int, step: str) -> str:
    """The name, without an ending, of the files of one graph: 00-captured, 01-after-fold_tokens, …"""
    return f"{number:02}-{step if number == 0 else f'after-{step}'}"


def read_report(folder: Path) -> dict[str, Any]:
    """The report of the run that a directory holds.

    Raises:
        DiffError: it holds none, or one that is not JSON.
    """
    return _read(folder, REPORT)


def read_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """What the values of the captured graph depend on, by name.

    Raises:
        DiffError: as `read_report`, or they are not a list of values with names.
    """
    facts = _read(folder, FACTS)
    try:
        return {value["name"]: value for value in facts["values"]}
    except (KeyError, TypeError) as error:
        raise DiffError(f"{folder / FACTS} does not list values by their names; write the run anew") from error


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DiffError(f"there is no {path}, so {folder} is not a run directory; write one with run_dir=") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DiffError(f"{path} is not JSON ({error}); write the run anew") from error
    if not isinstance(data, dict):
        raise DiffError(f"{path} holds a {type(data).__name__}, not an object; write the run anew")
    return data


def graphs_of(folder: Path) -> list[Path]:
    """The outlines in a run directory, first to last.

    Raises:
        DiffError: it holds none.
    """
    found = sorted(folder.glob("[0-9][0-9]*-*.json"), key=lambda path: int(path.name.partition("-")[0]))
    if not found:
        raise DiffError(f"{folder} holds no graphs (NN-….json), so it is not a run directory; write one with run_dir=")
    return found
