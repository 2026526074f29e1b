"""The directory of a run: what it holds, that it is the same in every process, and what it says when things go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import Tensor, nn

import foldfx
from foldfx.inspection import diff_graphs
from foldfx.inspection.graph_text import state_tensors
from foldfx.inspection.report import SCHEMA_FILE
from foldfx.passes import Outcome, Pass, PassContext, PassResult, Status

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.gates = nn.Embedding(6, 16), nn.Linear(16, 64)
        self.router = nn.Linear(64, 5)

    def forward(self, ids):
        hidden = torch.tanh(self.gates(self.embedding(ids)))
        return hidden.cumsum(1), self.router(hidden.cumsum(1)).topk(2).indices

def examples():
    torch.manual_seed(1)
    return [((torch.randint(6, (2, 3)),), {})]
"""


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gates = nn.Embedding(6, 16), nn.Linear(16, 64)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.gates(self.embedding(ids))).cumsum(1)


class Idle:
    name: ClassVar[str] = "idle/pass"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        return PassResult(program, (Outcome(self.name, Status.NO_MATCH, "everything", "nothing to do"),))


class WrongScan:
    """A pass that lets a running sum run the other way."""

    name: ClassVar[str] = "wrong_scan"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        found = next(node for node in program.graph.nodes if node.target is torch.ops.aten.cumsum.default)
        if context.fuel.admits("scan"):
            context.fuel.take("scan")
            found.args = (found.args[0], 0)
            program.module.recompile()
        return PassResult(program, (Outcome(self.name, Status.APPLIED, "scan", "said so"),))


def compiled(folder: Path, *passes: Pass) -> foldfx.Result:
    pipeline = foldfx.Pipeline(passes or (foldfx.FoldTokens(),))
    return foldfx.compile(Words(), [((torch.randint(6, (2, 3)),), {})], pipeline=pipeline, run_dir=folder)


def held(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def report_of(folder: Path) -> Any:
    report = json.loads((folder / "report.json").read_text())
    Draft202012Validator(json.loads(SCHEMA_FILE.read_text())).validate(report)
    return report


def test_it_holds_every_graph_its_diffs_and_the_report(tmp_path: Path) -> None:
    result = compiled(tmp_path / "run", Idle(), foldfx.FoldTokens())
    assert held(tmp_path / "run") == [
        "00-captured.json",
        "00-captured.py",
        "01-after-idle_pass.diff",
        "01-after-idle_pass.json",
        "01-after-idle_pass.py",
        "02-after-fold_tokens.diff",
        "02-after-fold_tokens.json",
        "02-after-fold_tokens.py",
        "03-after-lowering.diff",
        "03-after-lowering.json",
        "03-after-lowering.py",
        "facts.json",
        "report.html",
        "report.json",
        "run.json",
    ]
    report = report_of(tmp_path / "run")
    expected = json.loads(json.dumps(result.report.to_dict()))
    assert {name: report[name] for name in expected if name in report} == {
        name: value for name, value in expected.items() if name not in ("torch", "timing")
    }
    assert [each["step"] for each in report["graphs"]] == ["captured", "idle/pass", "fold_tokens", "lowering"]
    assert [each["kind"] for each in report["graphs"][2]["provenance"]] == ["3:1"]
    assert (tmp_path / "run" / "01-after-idle_pass.diff").read_text() == ""
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(f"{one} → {other}" in page for one, other in pairwise(["captured", "idle/pass", "fold_tokens", "lowering"]))
    assert "Whether speed was measured, and how, is in run.json." in page
    environment = json.loads((tmp_path / "run" / "run.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["seconds"] > 0


def test_graphs_can_be_compared_and_run(tmp_path: Path) -> None:
    result = compiled(tmp_path / "run")
    assert diff_graphs(tmp_path / "run", result._run.program).empty
    assert diff_graphs(tmp_path / "run" / "00-captured.json", result._run.captured).empty
    assert (
        result.diff.to_dict()["edits"]
        == diff_graphs(tmp_path / "run" / "00-captured.json", tmp_path / "run").to_dict()["edits"]
    )
    scope: dict[str, Any] = {}
    exec((tmp_path / "run" / "02-after-lowering.py").read_text(), scope)
    again = scope["FoldedProgram"](state_tensors(result._run.program.module))
    ids = torch.randint(6, (3, 4))
    assert torch.equal(again(ids), result.module(ids))


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "foldfx.cli", "compile", "--factory", "model.py:Words", "--examples", "model.py:examples"]
    for number in (1, 2):
        environment = os.environ | {"PYTHONPATH": str(ROOT / ".typing"), "PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--run-dir", f"run{number}"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    one, other = tmp_path / "run1", tmp_path / "run2"
    assert held(one) == held(other)
    assert [name for name in held(one) if (one / name).read_bytes() != (other / name).read_bytes()] == ["run.json"]


def test_what_was_wrong_is_a_script_and_what_is_left_the_last_graph(tmp_path: Path) -> None:
    result = compiled(tmp_path / "run", WrongScan())
    assert result.status == "rolled_back"
    report = report_of(tmp_path / "run")
    assert [each["step"] for each in report["graphs"]] == ["captured", "wrong_scan", "lowering", "rollback"]
    assert report["reproducers"] == [{"script": "reproducers/0/reproduce.py", "problem": ""}]
    assert (tmp_path / "run" / "reproducers" / "0" / "reproduce.py").is_file()
    assert diff_graphs(tmp_path / "run", result._run.program).empty
    assert "-cumsum = aten.cumsum(tanh, 1)" in (tmp_path / "run" / "01-after-wrong_scan.diff").read_text()


def test_a_counterexample_without_a_script_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise ValueError("sparse tensors cannot be stored")

    monkeypatch.setattr(foldfx.Result, "write_reproducer", refuse)
    compiled(tmp_path / "run", WrongScan())
    assert report_of(tmp_path / "run")["reproducers"] == [{"script": None, "problem": "sparse tensors cannot be stored"}]


def test_a_graph_without_a_text_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise ValueError("node cond calls a nested graph")

    monkeypatch.setattr("foldfx.inspection.run_directory.graph_text", refuse)
    compiled(tmp_path / "run")
    (first, *_) = report_of(tmp_path / "run")["graphs"]
    assert (first["text"], first["problem"]) == (None, "node cond calls a nested graph")


def test_a_folder_that_holds_something_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    with pytest.raises(FileExistsError, match="is not an empty directory"):
        foldfx.compile(Words(), [], run_dir=tmp_path / "run")


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError("no space left on device")

    monkeypatch.setattr("foldfx.inspection.run_directory.diff_text", full)
    with pytest.raises(OSError, match="no space"):
        compiled(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
