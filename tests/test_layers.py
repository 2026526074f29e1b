"""Imports inside the package are relative and point downwards, from the front door to the ground."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import foldfx

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 420
MOST_NAMES = 12

GROUND = frozenset({"errors", "_torch"})
FRONT_DOOR = frozenset({"__init__", "api", "backend", "cli"})
MAY_IMPORT = {
    "analysis": GROUND | {"analysis"},
    "runtime": GROUND | {"runtime"},
    "lowering": GROUND | {"runtime", "lowering"},
    "passes": GROUND | {"analysis", "runtime", "lowering", "passes"},
    "inspection": GROUND | {"analysis", "runtime", "lowering", "inspection"},
}
EVERYWHERE = GROUND | FRONT_DOOR | MAY_IMPORT.keys() | {"examples"}
MAY_IMPORT |= dict.fromkeys(GROUND, GROUND) | dict.fromkeys(FRONT_DOOR | {"examples"}, EVERYWHERE)

PACKAGE_FILES = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob("*.py")) + sorted(
    file.relative_to(ROOT).as_posix() for folder in MAY_IMPORT for file in (ROOT / folder).rglob("*.py")
)
OTHER_FILES = sorted(
    file.relative_to(ROOT).as_posix() for folder in ("tests", "docs", "benchmarks") for file in (ROOT / folder).rglob("*.py")
)


def layer(path: str) -> str:
    """Folder or, in the root, module that a file belongs to: `analysis` of `analysis/rules/conv.py`, `api` of `api.py`."""
    return PurePosixPath(path).parts[0].removesuffix(".py")


def violations(path: str, source: str) -> list[str]:
    """What the imports in a package file break, each as `path:line: why`; imports inside functions count, too."""
    here = layer(path)
    if here not in MAY_IMPORT:
        return [f"{path}:1: the design knows no place {here}"]
    found = []
    for line, target in imports(path, source):
        if target is None:
            if here != "examples":
                found.append(f"{path}:{line}: imports foldfx by name; use a relative import")
        elif target not in MAY_IMPORT[here]:
            found.append(f"{path}:{line}: {here} must not import {target}")
    return found


def imports(path: str, source: str) -> Iterator[tuple[int, str | None]]:
    """Line and layer of everything a file imports from the package; the layer is None where it is named absolutely."""
    package = PurePosixPath(path).parent.parts
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, None) for alias in node.names if alias.name.split(".")[0] == "foldfx")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module is not None and node.module.split(".")[0] == "foldfx":
                yield node.lineno, None
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level]
            for alias in node.names:
                target = (*base, *(node.module or alias.name).split("."))[0]
                yield node.lineno, target if target in EVERYWHERE else "__init__"


@pytest.mark.parametrize("path", PACKAGE_FILES)
def test_imports_point_downwards(path: str) -> None:
    assert violations(path, (ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "why"),
    [
        ("analysis/facts.py", "from ..passes import fold_tokens", "analysis must not import passes"),
        ("analysis/rules/conv.py", "from ...lowering.reference import Reference", "analysis must not import lowering"),
        ("runtime/lookup.py", "def late():\n    from .. import analysis", "runtime must not import analysis"),
        ("lowering/reference.py", "from ..analysis.program import Program", "lowering must not import analysis"),
        ("passes/verify.py", "from ..inspection import report", "passes must not import inspection"),
        ("inspection/report.py", "from ..passes.outcome import Outcome", "inspection must not import passes"),
        ("passes/verify.py", "from ..api import compile", "passes must not import api"),
        ("passes/verify.py", "from .. import compile", "passes must not import __init__"),
        ("errors.py", "from .runtime import lookup", "errors must not import runtime"),
        ("api.py", "from foldfx.passes import verify", "imports foldfx by name; use a relative import"),
        ("lowering/reference.py", "import torch, foldfx.runtime", "imports foldfx by name; use a relative import"),
        ("helpers.py", "", "the design knows no place helpers"),
    ],
)
def test_a_violation_is_caught(path: str, source: str, why: str) -> None:
    assert violations(path, source) == [f"{path}:{max(1, len(source.splitlines()))}: {why}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("analysis/rules/conv.py", "from . import table\nfrom ..rows import Rows\nfrom ..._torch import static_size"),
        ("runtime/lookup.py", "from .. import errors, _torch\nimport torch"),
        ("passes/verify.py", "from ..lowering import lower\nfrom ..runtime import LOOKUP\nfrom ..analysis import capture"),
        ("inspection/report.py", "from ..lowering import lower\nfrom ..analysis import capture"),
        ("examples/magika.py", "import foldfx\nfrom .checkpoints import fetch\nfrom .. import compile"),
        ("api.py", "from .passes import verify\nfrom .inspection import report\nfrom . import errors"),
        ("errors.py", "from ._torch import static_size\nimport foldfxtra"),
    ],
)
def test_an_import_downwards_is_allowed(path: str, source: str) -> None:
    assert violations(path, source) == []


def test_the_front_door_offers_a_dozen_names_at_most() -> None:
    names = getattr(foldfx, "__all__", ())
    assert len(names) <= MOST_NAMES
    assert [name for name in names if not hasattr(foldfx, name)] == []


def test_files_stay_short() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in PACKAGE_FILES + OTHER_FILES}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}
