"""What the wheel will hold, and what importing a part of it brings along."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_SHIPPED = {"tests", "docs", "benchmarks", "build", "dist"}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    tops = [entry for entry in ROOT.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    files = [file for top in tops if top.name not in NOT_SHIPPED for file in top.rglob("*.py")]
    folders = {file.parent for file in files} | {ROOT}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
    assert sorted(".".join(("foldfx", *folder.relative_to(ROOT).parts)) for folder in folders) == sorted(SETUPTOOLS["packages"])


def test_the_root_is_the_package_and_says_it_is_typed() -> None:
    assert SETUPTOOLS["package-dir"] == {"foldfx": "."}
    assert SETUPTOOLS["include-package-data"] is False
    assert SETUPTOOLS["package-data"]["foldfx"] == ["py.typed"]
    assert (ROOT / "py.typed").is_file()
    assert (ROOT / ".typing" / "foldfx").samefile(ROOT)


def test_data_files_are_package_data() -> None:
    folders = [(name, ROOT.joinpath(*name.split(".")[1:])) for name in SETUPTOOLS["packages"][1:]]
    data = {file for _, folder in folders for file in folder.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc")}
    listed = {
        file
        for name, folder in folders
        for pattern in SETUPTOOLS["package-data"].get(name, ())
        for file in folder.glob(pattern)
    }
    assert data == listed != set()


def test_the_root_is_imported_once() -> None:
    copies = [name for name, module in sys.modules.items() if _is_root(getattr(module, "__file__", None))]
    assert copies == ["foldfx"]


def test_runtime_imports_no_analysis_and_no_pass(tmp_path: Path) -> None:
    """A served model needs `foldfx.runtime`; nothing that traces, folds or reports comes with it."""
    command = "import sys, foldfx.runtime; print(*(name for name in sys.modules if name.split('.')[0] == 'foldfx'))"
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".typing")}
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    imported = done.stdout.split()
    assert "foldfx.runtime" in imported
    allowed = {"foldfx", "foldfx.errors", "foldfx._torch", "foldfx.runtime"}
    assert [name for name in imported if name not in allowed and not name.startswith("foldfx.runtime.")] == []


def _is_root(file: str | None) -> bool:
    return file is not None and Path(file).name == "__init__.py" and Path(file).resolve().parent == ROOT
