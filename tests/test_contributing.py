"""CONTRIBUTING.md says how to add a rule, a pass and a kernel; here each is done, block by block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = 60
"""Lines that fit a page."""


def blocks(markdown: str) -> list[str]:
    """The Python code blocks of a document, in order."""
    return re.findall(r"```python\n(.*?)```", markdown, flags=re.DOTALL)


def run(script: str, folder: Path = ROOT) -> None:
    """In a process of its own: the example rule must not be there for other tests. Files it writes go to `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".typing")}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_block_runs() -> None:
    script = "\n".join(blocks((ROOT / "CONTRIBUTING.md").read_text()))
    assert "@RULES.rule" in script
    assert "Pipeline(" in script
    assert "def lower" in script
    run(script)


def test_each_recipe_fits_a_page() -> None:
    sections = (ROOT / "CONTRIBUTING.md").read_text().split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == ["Add a rule", "Add a pass", "Add a kernel", "Add a mutant"]
    for section in sections:
        assert len(section.splitlines()) <= PAGE + 5, section.splitlines()[0]


@pytest.mark.parametrize("document", ["README.md", "docs/diff.md", "docs/observables.md", "docs/report.md", "docs/routes.md"])
def test_blocks_of_documents_run(document: str, tmp_path: Path) -> None:
    script = "\n".join(blocks((ROOT / document).read_text()))
    assert "foldfx.compile" in script
    run(script, tmp_path)


def test_the_blocks_on_tr_hash_run() -> None:
    script = "\n".join(blocks((ROOT / "docs" / "tr_hash.md").read_text()))
    assert "TRHashEngine(config)" in script
    run(script)
