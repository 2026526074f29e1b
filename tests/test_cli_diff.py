"""`foldfx diff`: its sides, its forms, its exit codes, and policies."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch

from foldfx.cli import main
from foldfx.inspection.diff import diff_graphs
from foldfx.inspection.diff_text import hunks
from foldfx.inspection.policy import Policy

ROOT = Path(__file__).resolve().parents[1]
FILE = """
import torch, foldfx
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.gates = nn.Embedding(6, 16), nn.Linear(16, 64)
        self.eval()

    def forward(self, ids):
        return torch.tanh(self.gates(self.embedding(ids))).cumsum(1)

def examples():
    torch.manual_seed(1)
    return [((torch.randint(6, (2, 3)),), {})]

def captured():
    return foldfx.capture(Words(), examples()[0][0])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory, next to the file of its model."""
    folder = tmp_path_factory.mktemp("diff")
    (folder / "models.py").write_text(FILE)
    options = ["--factory", f"{folder}/models.py:Words", "--examples", f"{folder}/models.py:examples"]
    assert main(["compile", *options, "--run-dir", str(folder / "run")]) == 0
    return folder / "run"


def sides(run: Path) -> list[str]:
    return [str(run / "00-captured.json"), str(run)]


def test_the_text_is_that_of_the_diff(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *sides(run)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- run/00-captured\n+++ run/02-after-lowering\nchanges: 1 added, 3 removed, 4 state, 1 signature")
    assert "@@ 3:1 fold_tokens: embedding, linear, tanh → embedding_default @@\n-embedding = " in out
    assert "\x1b" not in out


def test_json_and_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *sides(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == diff_graphs(*sides(run)).to_dict()
    assert main(["diff", *sides(run), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("### foldfx diff: run/00-captured → run/02-after-lowering\n\n| | before |")


def test_the_page_stands_alone_and_says_what_the_text_says(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *sides(run), "--format", "html"]) == 0
    page = capsys.readouterr().out
    diff = diff_graphs(*sides(run))
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>run/00-captured → run/02-after-lowering: different</title>" in page
    assert all(escape(line, quote=False) in page for hunk in hunks(diff) for line in (hunk.title, *hunk.lines))
    assert "1 added, 3 removed, 4 state, 1 signature" in page
    assert main(["diff", str(run), str(run), "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert "Equal: nothing differs but names." in page
    assert "No state came, went or changed." in page
    assert "<details" not in page


def test_exit_codes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *sides(run), "--exit-code"]) == 2
    capsys.readouterr()
    assert main(["diff", str(run), str(run), "--exit-code"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", str(run), str(run / "absent")]) == 1
    assert "DiffError: there is no" in capsys.readouterr().err


def test_a_function_and_an_exported_program_are_sides(run: Path, tmp_path: Path) -> None:
    captured = f"{run.parent}/models.py:captured"
    assert main(["diff", captured, str(run / "00-captured.json"), "--exit-code"]) == 0
    assert main(["diff", captured, str(run), "--exit-code"]) == 2
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(2),))
    torch.export.save(exported, tmp_path / "model.pt2")
    assert main(["diff", str(tmp_path / "model.pt2"), str(tmp_path / "model.pt2"), "--exit-code"]) == 0


def test_colours_are_for_terminals_that_want_them(run: Path) -> None:
    def on_terminal(**more: str) -> str:
        master, slave = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CI")}
        environment |= {"PYTHONPATH": str(ROOT / ".typing"), "TERM": "xterm", **more}
        command = [sys.executable, "-W", "ignore", "-m", "foldfx.cli", "diff", *sides(run)]
        done = subprocess.Popen(command, stdout=slave, env=environment)
        os.close(slave)
        found = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            found += part
        assert done.wait() == 0
        os.close(master)
        return found.decode()

    assert "\x1b[31m-embedding = " in on_terminal()
    assert "\x1b[31m" not in on_terminal(NO_COLOR="1")


RULES = {
    'new_operations = ["aten.embedding.default"]': "",
    "new_operations = []": "",
    "max_growth_mib = 0": "",
    "max_growth_mib = -1": "logical bytes change by",
    "numerics_changing = false": "",
    "max_fragile_tokens = 0": "",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_policy_fails_on_what_breaks_it(rule: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.toml").write_text(rule)
    code = main(["diff", *sides(run), "--check", str(tmp_path / "policy.toml")])
    error = capsys.readouterr().err
    assert code == (2 if RULES[rule] else 0)
    assert RULES[rule] in error


def test_new_operations_are_those_that_nothing_did_before(run: Path) -> None:
    """The fold brings another embedding, but embeddings were there; the step in between brings a lookup."""
    step = diff_graphs(run / "00-captured.json", run / "01-after-fold_tokens.json")
    assert Policy(new_operations=()).violations(step, None) == [
        "new_operations: foldfx.lookup.default is new (first: lookup_default) and not among those allowed"
    ]


def test_growth_is_of_both_counts(run: Path) -> None:
    backwards = diff_graphs(run, run / "00-captured.json")
    assert Policy(max_growth_mib=1).violations(backwards, None) == []
    assert [each.split(" ")[1] for each in Policy(max_growth_mib=0).violations(backwards, None)] == ["logical", "backing"]


def report(**changes: Any) -> dict[str, Any]:
    kernel = {"node": "lookup", "provider": "reference", "kernel": "aten.embedding", "declined": []}
    return {
        "kernels": [kernel | changes],
        "decisions": [{"node": "topk", "probe": {"fragile": 3}}, {"node": "le", "probe": None}],
    }


def test_kernels_must_be_said_to_preserve_numerics(run: Path) -> None:
    policy, same = Policy(numerics_changing=False), diff_graphs(run, run)
    assert policy.violations(same, report()) == []
    assert policy.violations(same, report(provider="cuda", preserves_numerics=True)) == []
    (found,) = policy.violations(same, report(provider="cuda"))
    assert found == (
        "numerics_changing: lookup runs on aten.embedding of provider cuda, which the report does not call numerics-preserving"
    )
    assert Policy(numerics_changing=True).violations(same, report(provider="cuda")) == []


def test_fragile_tokens_are_counted(run: Path) -> None:
    same = diff_graphs(run, run)
    assert Policy(max_fragile_tokens=3).violations(same, report()) == []
    (found,) = Policy(max_fragile_tokens=2).violations(same, report())
    assert found == "max_fragile_tokens: 3 tokens are fragile (3 of topk), at most 2 allowed"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_growth = 1", "has unknown rules ['max_growth']"),
        ("max_growth_mib = 'x'", "max_growth_mib must be a number of MiB, got 'x'"),
        ("max_growth_mib = true", "max_growth_mib must be a number of MiB"),
        ("max_fragile_tokens = 1.5", "max_fragile_tokens must be a whole number"),
        ("new_operations = 'aten'", "new_operations must be a list of operations"),
        ("numerics_changing = 0", "numerics_changing must be true or false"),
        ("= 1", "is not TOML"),
    ],
)
def test_a_malformed_policy_is_an_error(
    text: str, why: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.toml").write_text(text)
    assert main(["diff", *sides(run), "--check", str(tmp_path / "policy.toml")]) == 1
    assert why in capsys.readouterr().err


def test_rules_about_a_run_need_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.toml").write_text("max_fragile_tokens = 0")
    assert main(["diff", *reversed(sides(run)), "--check", str(tmp_path / "policy.toml")]) == 1
    assert "max_fragile_tokens reads the report of a run; name its directory" in capsys.readouterr().err
    assert main(["diff", *sides(run), "--check", str(tmp_path / "absent.toml")]) == 1
    assert "there is no policy" in capsys.readouterr().err
    assert main(["diff", *sides(run), "--check", str(tmp_path)]) == 1
    assert f"there is no policy {tmp_path}, or it is no file" in capsys.readouterr().err
