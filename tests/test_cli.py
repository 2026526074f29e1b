"""The command line: exit codes, one line on stderr for an error, and nothing but JSON on stdout with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model

from foldfx import cli
from foldfx.cli.inputs import built_model
from foldfx.examples.g2p_en import DecoderStep, EncoderStep

pytestmark = pytest.mark.usefixtures("own_folder")

PAGE = "for reviewers: foldfx-runs/0001/report.html\n"
SOURCE = '''
import torch
from torch import nn

class Scorer(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.project, self.head = nn.Embedding(9, 32), nn.Linear(32, 32), nn.Linear(32, 9, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
    def forward(self, ids, hidden):
        return self.head(torch.relu(self.project(self.embedding(ids))) + hidden)

class Derived(Scorer):
    """Its ids are computed with before they index the table."""
    def forward(self, ids, hidden):
        return super().forward(ids // 2, hidden)

class Trains(Scorer):
    def eval(self):
        return self

class Drafted(Scorer):
    def __init__(self, width):
        super().__init__()

make, make_tied, make_derived, make_training = Scorer, lambda: Scorer(tied=True), Derived, Trains

def make_text():
    return "not a module"

def make_breaking():
    raise ValueError("two\\nlines")

def examples():
    return [((torch.arange(6).reshape(2, 3), torch.ones(2, 3, 32)), {})]

def no_examples():
    return []
'''
DRIFTS = '''
import itertools
import torch
import models

library = torch.library.Library("foldfx_test_cli", "FRAGMENT")
library.define("drift(Tensor x) -> Tensor")
library.impl("drift", lambda x, counter=itertools.count(): x + next(counter), "CPU")
library.impl("drift", lambda x: torch.empty_like(x), "Meta")

class Drifts(models.Scorer):
    """Returns something else every time."""
    def forward(self, ids, hidden):
        return torch.ops.foldfx_test_cli.drift(super().forward(ids, hidden))
'''


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return str(path)


def arguments(command: str, models: str, factory: str = "make", *more: str) -> list[str]:
    return [command, "--factory", f"{models}:{factory}", "--examples", f"{models}:examples", "--static", *more]


def run_in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    paths = [Path(cli.__file__).resolve().parents[1] / ".typing", Path(words[2].partition(":")[0]).parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "foldfx.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def read(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """stdout as JSON: all of it."""
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_compile_prints_the_report_as_json_and_nothing_else(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("compile", models, "make", "--json")) == 0
    data = read(capsys)
    assert (data["schema_version"], data["status"]) == (1, "accepted")


def test_compile_prints_the_report_for_people(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("compile", models)) == 0
    out, err = capsys.readouterr()
    assert out.startswith("foldfx: accepted\n")
    assert err == PAGE


@pytest.mark.parametrize(("options", "reason"), [(["--fuel", "0"], "out of fuel"), (["--disable", "fold_tokens"], "by name")])
def test_fuel_and_disable(models: str, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("compile", models, "make", "--json", *options)) == 0
    data = read(capsys)
    assert data["status"] == "unchanged"
    assert reason in data["outcomes"][0]["reason"]


def test_analyze_as_json_table_and_proof(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("analyze", models, "make", "--json")) == 0
    data = read(capsys)
    assert data["schema_version"] == 1
    assert {value["name"]: value["token_only"] for value in data["values"]}["relu"]
    assert cli.main(arguments("analyze", models)) == 0
    assert "embedding" in capsys.readouterr().out
    assert cli.main(arguments("analyze", models, "make", "--node", "relu")) == 0
    assert capsys.readouterr().out.startswith("relu depends on: token(ids)")
    assert cli.main(arguments("analyze", models, "make", "--node", "add")) == 0
    assert "add depends on: context + token(ids)" in capsys.readouterr().out


def test_token_states_a_domain(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("compile", models, "make_derived", "--json")) == 1
    assert "State it" in capsys.readouterr().err
    assert cli.main(arguments("compile", models, "make_derived", "--json", "--token", "ids=12")) == 0
    stated = read(capsys)["tokens"]["ids"]
    assert (stated["size"], stated["stated"]) == (12, True)
    assert cli.main(arguments("compile", models, "make", "--json", "--token", "ids")) == 0
    assert read(capsys)["tokens"]["ids"]["size"] == 9


@pytest.mark.parametrize("factory", ["make", "make_tied"])
def test_weights_are_what_is_folded(models: str, factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = built_model(f"{models}:{factory}", None)
    weights = str(tmp_path / "model.safetensors")
    with torch.no_grad():
        model.get_parameter("embedding.weight").fill_(2)
    save_model(model, weights)
    loaded = built_model(f"{models}:{factory}", Path(weights))
    assert loaded.get_parameter("embedding.weight").eq(2).all()
    assert loaded.get_parameter("head.weight").eq(2).all() == (factory == "make_tied")
    assert cli.main(arguments("compile", models, factory, "--json", "--weights", weights)) == 0
    assert read(capsys)["status"] == "accepted"


BAD = {
    "no file": (["--factory", "missing.py:make"], "there is no file missing.py"),
    "no module": (["--factory", "no.such.module:make"], "there is no module no.such.module"),
    "no function": (["--factory", "{models}:nothing"], "has no function 'nothing'"),
    "no colon": (["--factory", "{models}"], "names no function"),
    "no nn.Module": (["--factory", "{models}:make_text"], "returned a str, not an nn.Module"),
    "a factory that raises": (["--factory", "{models}:make_breaking"], "two lines"),
    "training mode": (["--factory", "{models}:make_training"], "is in training mode; call model.eval()"),
    "no examples": (["--examples", "{models}:no_examples"], "at least one is required"),
    "no weights": (["--weights", "missing.safetensors"], "there is no weights file missing.safetensors"),
    "weights of another model": (["--weights", "{weights}"], "embedding.weight"),
    "weights that are no weights": (["--weights", "{models}"], "models.py is not a safetensors file"),
    "a factory that takes arguments": (["--factory", "{models}:Drafted"], "Drafted fails: TypeError: "),
    "one example alone": (["--examples", "{models}:make_text"], "example 0 is a str; pass foldfx.Example"),
    "examples that are none": (["--examples", "{models}:make"], "the examples are of type Scorer; pass a list"),
    "a file that cannot run": (["--factory", "{broken}:make"], "broken.py fails: ModuleNotFoundError: No module named"),
    "a domain that is no number": (["--token", "ids=many"], "the domain must be a number"),
    "a domain that is no decimal": (["--token", "ids=²"], "the domain must be a number"),
    "a run below a file": (["--run-dir", "{models}/run"], "models.py is a file"),
    "a reproducer that would overwrite": (["--reproducer", "{folder}"], "exists and is not an empty directory"),
    "an unknown token input": (["--token", "idz"], "'idz' is not an input"),
    "an unknown pass": (["--disable", "fold"], "fold_tokens"),
    "negative fuel": (["--fuel", "-1"], "fuel must not be negative"),
    "an unknown option": (["--fast"], "--fast"),
    "fuel that is no number": (["--fuel", "much"], "--fuel"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_ends_with_1_and_one_line(kind: str, models: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights = str(tmp_path / "other.safetensors")
    save_file({"other": torch.zeros(1)}, weights)
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_package")
    more, message = BAD[kind]
    words = [word.format(models=models, weights=weights, broken=broken, folder=tmp_path) for word in more]
    assert cli.main(arguments("compile", models, "make", "--json", *words)) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


def test_code_that_fails_is_named_with_its_line(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = SOURCE.splitlines().index('    raise ValueError("two\\nlines")') + 1
    assert cli.main(arguments("compile", models, "make_breaking")) == 1
    said = f"{models}:make_breaking fails: ValueError: two lines, at {models}:{line}"
    assert capsys.readouterr().err == f"foldfx: UsageError: {said}\n"


@pytest.mark.parametrize("words", [[], ["routes"]], ids=["foldfx", "foldfx routes"])
def test_without_a_command_the_help_is_shown_as_it_is_laid_out(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0].startswith("Usage: "), "\nCommands:\n" in err) == ("", True, True)


def test_analyze_prints_every_value_whole_where_there_is_no_terminal(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("analyze", models)) == 0
    out = capsys.readouterr().out
    assert "relu depends on: token(ids), laid out [ids[0]][ids[1]][32]\n" in out
    assert "…" not in out


def test_analyze_prints_one_value_as_json(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("analyze", models, "make", "--node", "relu", "--json")) == 0
    (value,) = read(capsys)["values"]
    assert (value["name"], value["token_only"]) == ("relu", True)


def test_an_unknown_node_ends_with_1_and_names_the_nearest(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments("analyze", models, "make", "--node", "embed")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "'embedding'" in err


def test_a_success_in_a_process(models: str) -> None:
    done = run_in_a_process(*arguments("compile", models, "make", "--json"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "accepted"
    assert done.stderr == PAGE


def test_every_compile_leaves_a_run_for_reviewers_and_overwrites_none(models: str, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.main(arguments("compile", models)) == 0
    assert cli.main(arguments("compile", models, "make", "--run-dir", "named")) == 0
    assert sorted(path.name for path in (tmp_path / "foldfx-runs").iterdir()) == ["0001", "0002"]
    pages = [tmp_path / folder / "report.html" for folder in ("foldfx-runs/0001", "foldfx-runs/0002", "named")]
    assert len({page.read_bytes() for page in pages}) == 1


def test_a_rollback_in_a_process_ends_with_2_and_still_reports(models: str) -> None:
    drifts = Path(models).with_name("drifts.py")
    drifts.write_text(DRIFTS)
    words = ["compile", "--factory", f"{drifts}:Drifts", "--examples", f"{models}:examples", "--static", "--json"]
    done = run_in_a_process(*words)
    assert done.returncode == cli.ROLLED_BACK == 2
    data = json.loads(done.stdout)
    assert (data["status"], data["verification"]["verdict"]) == ("rolled_back", "undecided")


def test_an_error_in_a_process_ends_with_1_and_one_line(models: str) -> None:
    done = run_in_a_process(*arguments("compile", models, "nothing"))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


def test_a_file_that_holds_model_and_examples_runs_once(models: str, tmp_path: Path) -> None:
    """It may register operators or classes, which a second run would refuse; and weights are loaded once."""
    path = tmp_path / "once.py"
    path.write_text(SOURCE + f"open({str(tmp_path / 'log')!r}, 'a').write('run ')")
    assert cli.main(arguments("compile", str(path))) == 0
    assert (tmp_path / "log").read_text() == "run "


def test_demo(g2p: tuple[EncoderStep, DecoderStep], capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON document on stdout; the words, pronounced before and after, on stderr. Skipped without the checkpoint."""
    assert all(isinstance(step, torch.nn.Module) for step in g2p)
    assert cli.main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "EH0 M B EH1 D IH0 NG" in err
    assert "DIFFERENT" not in err
    assert out.count('"status": "accepted"') == 2
    json.loads(out)
