"""What `compile` and `bisect` show on a terminal, in a pipe, and where colours are asked for or forbidden."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import foldfx
from foldfx import cli
from foldfx.cli.inputs import built_model, loaded_examples, progress_bars

pytestmark = pytest.mark.usefixtures("own_folder")

ROOT = Path(cli.__file__).resolve().parents[1]
WIDTH = 70
SOURCE = """
import torch
from torch import nn

class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.project = nn.Embedding(9, 32), nn.Linear(32, 32)
    def forward(self, ids, hidden):
        return torch.relu(self.project(self.embedding(ids))) + hidden

def examples():
    return [((torch.arange(6).reshape(2, 3), torch.ones(2, 3, 32)), {})]
"""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d[;m]")
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH)}


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "shown_models.py"
    path.write_text(SOURCE)
    return str(path)


def arguments(command: str, models: str) -> list[str]:
    return [command, "--factory", f"{models}:Scorer", "--examples", f"{models}:examples", "--static"]


def in_a_process(words: list[str], *terminals: str, **more: str) -> dict[str, str]:
    """stdout and stderr of a run, of which `terminals` are pseudo-terminals of WIDTH columns and the others pipes."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    environment |= {"PYTHONPATH": str(ROOT / ".typing"), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **more}
    ends = {name: pty.openpty() if name in terminals else os.pipe() for name in ("stdout", "stderr")}
    for name in terminals:
        fcntl.ioctl(ends[name][1], termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    command = [sys.executable, "-W", "ignore", "-m", "foldfx.cli", *words]
    running = subprocess.Popen(command, stdout=ends["stdout"][1], stderr=ends["stderr"][1], env=environment)
    for _, end in ends.values():
        os.close(end)
    with ThreadPoolExecutor() as readers:  # both at once: a terminal holds 4 KiB that nobody has read
        parts = readers.map(read_all, (end for end, _ in ends.values()))
    found = {name: part.decode() for name, part in zip(ends, parts, strict=True)}
    assert running.wait() == 0, found
    return found


def read_all(end: int) -> bytes:
    found = b""
    while True:
        try:
            part = os.read(end, 65536)
        except OSError:  # what a terminal answers when its other end is closed
            part = b""
        if not part:
            os.close(end)
            return found
        found += part


def test_a_terminal_gets_tables_colours_and_bars_and_a_pipe_none_of_them(models: str) -> None:
    words = arguments("compile", models)
    shown = in_a_process(words, "stdout", "stderr")
    assert "\x1b[1;32maccepted" in shown["stdout"]
    assert "verification: " in shown["stdout"]
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in shown["stdout"].splitlines()]
    assert max(map(len, plain)) <= WIDTH
    for each in ("whole run", "checking tables, scalar", "9/9", "0:00:0", "ETA"):
        assert each in shown["stderr"]
    piped = in_a_process(words, "stderr")
    assert "ETA" in piped["stderr"]
    assert piped["stdout"].startswith("foldfx: accepted\n  logical  bytes ")
    assert "\x1b" not in piped["stdout"]
    logged = in_a_process(words)
    assert logged == {"stdout": piped["stdout"], "stderr": "for reviewers: foldfx-runs/0003/report.html\n"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in TERMINAL.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize("forced", [None, "", "1"])
@pytest.mark.parametrize("forbidden", [False, True])
def test_colours_are_forced_and_forbidden_by_the_usual_variables(
    forced: str | None, forbidden: bool, models: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if forced is not None:
        environment.setenv("FORCE_COLOR", forced)
    if forbidden:
        environment.setenv("NO_COLOR", "1")
    assert cli.main(arguments("compile", models)) == 0
    out, err = capsys.readouterr()
    assert ("where token-only values end\x1b[0m" in out) == bool(forced)
    assert (COLOUR.search(out) is not None) == (bool(forced) and not forbidden)
    assert "ETA" not in err


def test_a_pipe_gets_the_plain_text_byte_for_byte(
    models: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = foldfx.compile(built_model(f"{models}:Scorer", None), loaded_examples(f"{models}:examples"), dynamic=False)
    assert cli.main(arguments("compile", models)) == 0
    assert capsys.readouterr() == (f"{result.report}\n", "for reviewers: foldfx-runs/0001/report.html\n")


def test_a_bisection_is_a_table_on_a_terminal(
    models: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("FORCE_COLOR", "1")
    environment.setenv("NO_COLOR", "1")
    assert cli.main(arguments("bisect", models)) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[2] == "candidates tried"
    assert [line.split() for line in lines if "agrees" in line] == [["fold_tokens:", "relu", "agrees"]]
    assert lines[-1] == "nothing is wrong"


def test_a_stage_that_begins_anew_counts_anew(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setattr("sys.stderr.isatty", lambda: True)
    environment.setenv("FORCE_COLOR", "1")
    with progress_bars() as progress:
        for done, total in [(5, 2000), (7, 2000), (1, 3), (3, 3), (8, 99)]:
            progress("tables [red]", done, total)
    text = re.sub(r"\x1b\[[\d;?]*\w", "", capsys.readouterr().err)
    for count in ("5/2,000", "1/3", "8/99"):
        assert re.search(rf"tables \[red\] [━╸╺]+ +{count} 0:00:00 ETA -:--:--", text)
