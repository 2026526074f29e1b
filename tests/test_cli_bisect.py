"""`foldfx bisect`, `compile --reproducer` and `--time-budget`: what is printed, exit codes, and scripts that run."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from foldfx import cli
from foldfx.passes import ladder

pytestmark = pytest.mark.usefixtures("own_folder")

PAGE = "for reviewers: foldfx-runs/0001/report.html\n"
SOURCE = '''
import torch
from torch import nn

class Scorer(nn.Module):
    """Two parts that fold apart from each other."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Embedding(80, 16), nn.Embedding(9, 16)
        self.up, self.down = nn.Linear(16, 8), nn.Linear(16, 24)
    def forward(self, ids, kinds, hidden):
        return torch.relu(self.up(self.one(ids))) + hidden, self.down(self.other(kinds)).cumsum(1)

def examples():
    return [((torch.arange(6).reshape(2, 3), torch.arange(6).reshape(2, 3), torch.ones(2, 3, 8)), {})]
'''
FAULTY = """
from foldfx.passes import ladder

honest = ladder.tabulate

def tabulate(region, values, progress, alone):
    tables = honest(region, values, progress, alone)
    if region.name == "kinds":
        tables[0][8, 5] += 1e-3
    return tables

ladder.tabulate = tabulate
"""
"""Text that makes a factory file plant a fault when it is loaded."""


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "bisected_models.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the last row of the table over one of the inputs be wrong, which the examples do not use."""

    def plant(name: str) -> None:
        honest = ladder.tabulate

        def tabulate(region, values, progress, alone):  # type: ignore[no-untyped-def]
            tables: list[Tensor] = honest(region, values, progress, alone)
            if name in region.name:
                tables[0][-1, 5] += 1e-3
            return tables

        monkeypatch.setattr(ladder, "tabulate", tabulate)

    return plant


def arguments(command: str, models: str, *more: str) -> list[str]:
    return [command, "--factory", f"{models}:Scorer", "--examples", f"{models}:examples", "--static", *more]


def test_bisect_prints_one_candidate_and_ends_with_0_where_nothing_is_wrong(
    models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "none"
    assert cli.main(arguments("bisect", models, "--reproducer", str(folder))) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["fold_tokens: relu, fold_tokens: linear_1: agrees"]
    assert err == PAGE
    assert not folder.exists()


def test_bisect_prints_the_candidates_and_the_wrong_rewrite_and_ends_with_2(
    models: str, plant: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant("kinds")
    assert cli.main(arguments("bisect", models)) == cli.ROLLED_BACK == 2
    out, err = capsys.readouterr()
    first, *others = out.splitlines()
    assert first.startswith("fold_tokens: relu, fold_tokens: linear_1: table of linear_1, layout as built")
    assert "fold_tokens: relu: agrees" in others
    wrong = [line for line in others if line.startswith("wrong: ")]
    assert wrong
    assert all(line.startswith("wrong: token input kinds, values linear_1: wrong: table of linear_1") for line in wrong)
    assert "max-abs 1.000e-03 exceeds" in wrong[0]
    assert wrong[0].endswith("ids 8")
    assert err == PAGE


def test_bisect_names_every_wrong_rewrite_where_nothing_is_right(
    models: str, plant: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    plant("")
    assert cli.main(arguments("bisect", models)) == 2
    out = capsys.readouterr().out
    assert "no rewrite: agrees" in out.splitlines()
    assert "\nwrong: token input ids, values relu: " in out
    assert "\nwrong: token input kinds, values linear_1: " in out


@pytest.mark.parametrize("command", ["bisect", "compile"])
def test_a_reproducer_is_written_and_runs(
    command: str,
    models: str,
    plant: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`compile` keeps the other rewrite and so ends with 0; the fault is in the report, and in the folder."""
    plant("kinds")
    folder = tmp_path / "shown"
    assert cli.main(arguments(command, models, "--reproducer", str(folder))) == {"bisect": 2, "compile": 0}[command]
    assert capsys.readouterr().err == PAGE + f"reproducer: python {folder.resolve() / 'reproduce.py'}\n"
    assert "table of linear_1" in (folder / "reproduce.py").read_text().partition("\n")[0]
    monkeypatch.syspath_prepend(folder)
    for name in ("reference", "candidate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(folder / "reproduce.py"), run_name="__main__")
    for name in ("reference", "candidate"):
        sys.modules.pop(name, None)
    assert end.value.code == 1
    assert capsys.readouterr().out.startswith("different\n  example 0: output <root>: max-abs 1.000e-03")


def test_compile_without_a_fault_writes_no_reproducer(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "none"
    assert cli.main(arguments("compile", models, "--json", "--reproducer", str(folder))) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["counterexamples"] == []
    assert err == PAGE
    assert not folder.exists()


def test_json_stays_json_beside_a_reproducer(
    models: str, plant: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("")
    assert cli.main(arguments("compile", models, "--json", "--reproducer", str(tmp_path / "shown"))) == 2
    data = json.loads(capsys.readouterr().out)
    assert data["status"] == "rolled_back"
    assert {each["node"] for each in data["counterexamples"]} == {"relu", "linear_1"}
    assert data["counterexamples"][0]["tokens"]
    assert {"call", "where", "what", "index", "expected", "found"} <= data["counterexamples"][0].keys()


def test_a_folder_that_holds_something_ends_with_1(
    models: str, plant: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("kinds")
    (tmp_path / "mine").write_text("kept")
    assert cli.main(arguments("bisect", models, "--reproducer", str(tmp_path))) == 1
    assert "is not an empty directory; name a new one" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_factory_file_may_plant_the_fault(
    models: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ladder, "tabulate", ladder.tabulate)  # what the file sets is put back
    with Path(models).open("a") as file:
        file.write(FAULTY)
    assert cli.main(arguments("bisect", models)) == 2
    assert "\nwrong: token input kinds, values linear_1: wrong: table of linear_1" in capsys.readouterr().out


def test_a_time_budget_samples_single_row_calls(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("compile", models, "--time-budget", "1e-9")) == 0
    found = re.search(r"table of relu, scalar .*: sampled (\d+) of 80 ids", capsys.readouterr().out)
    assert found is not None
    assert 1 <= int(found[1]) < 80
    assert cli.main(arguments("compile", models, "--time-budget", "600")) == 0
    assert "scalar []: full domain of 80 ids" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("budget", "message"), [("0", "must be a positive number"), ("-3", "positive"), ("soon", "--time-budget")]
)
def test_a_time_budget_that_is_none_ends_with_1(
    budget: str, message: str, models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments("compile", models, "--time-budget", budget)) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert message in err
