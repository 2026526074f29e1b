"""`foldfx verify`: exit codes, one line on stderr for an error, and nothing but JSON on stdout with --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_model

from foldfx import cli
from foldfx.cli.inputs import load_function

SOURCE = '''
import itertools
import torch
from torch import nn

class Scorer(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
    def forward(self, ids):
        return self.head(self.embedding(ids))

class Rewritten(Scorer):
    """The same, computed in another way."""
    def forward(self, ids):
        return nn.functional.one_hot(ids, 9).float() @ (self.embedding.weight @ self.head.weight.T) + self.head.bias

class Drifting(Scorer):
    counter = itertools.count()
    def forward(self, ids):
        return super().forward(ids) + next(self.counter)

class Longer(Scorer):
    def forward(self, ids, mask):
        return super().forward(ids) * mask

make, rewritten, drifting, longer, other = Scorer, Rewritten, Drifting, Longer, lambda: Scorer(1)

def make_text():
    return "not a module"

def examples():
    return [((torch.arange(6).reshape(2, 3),), {})]

def bad_examples():
    return [((torch.full((2, 3), 9),), {})]

def no_examples():
    return []
'''


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "two_models.py"
    path.write_text(SOURCE)
    return str(path)


def words(models: str, reference: str, candidate: str, *more: str) -> list[str]:
    return ["verify", f"{models}:{reference}", f"{models}:{candidate}", "--examples", f"{models}:examples", *more]


def test_equivalent_ends_with_0(models: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(models, "make", "rewritten")) == 0
    assert capsys.readouterr() == ("equivalent_on: 1 example(s)\n", "")


@pytest.mark.parametrize(
    ("reference", "candidate", "verdict", "why"),
    [("make", "other", "different", "max-abs"), ("drifting", "make", "undecided", "differs from itself")],
)
def test_anything_else_ends_with_2_and_says_why(
    reference: str, candidate: str, verdict: str, why: str, models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(models, reference, candidate)) == cli.NOT_EQUIVALENT == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"{verdict}: 1 example(s)\n  example 0: ")
    assert why in out
    assert err == ""


@pytest.mark.parametrize(("candidate", "code", "verdict"), [("rewritten", 0, "equivalent_on"), ("other", 2, "different")])
def test_json_is_all_there_is_on_stdout(
    candidate: str, code: int, verdict: str, models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(models, "make", candidate, "--json")) == code
    data = json.loads(capsys.readouterr().out)
    assert (next(iter(data)), data["schema_version"], data["verdict"]) == ("schema_version", 1, verdict)
    assert data["outputs"]["max_abs"] <= 1e-5 if code == 0 else data["outputs"]["max_abs"] > 1e-5


def test_weights_go_into_the_side_they_are_given_for(models: str, tmp_path: Path) -> None:
    weights = str(tmp_path / "other.safetensors")
    save_model(load_function(f"{models}:other")(), weights)
    assert cli.main(words(models, "make", "other", "--weights", weights)) == 0
    assert cli.main(words(models, "other", "make", "--candidate-weights", weights)) == 0
    assert cli.main(words(models, "make", "make", "--candidate-weights", weights)) == 2


BAD = {
    "no such function": (["make", "nothing"], [], "has no function 'nothing'"),
    "no module": (["make_text", "make"], [], "not an nn.Module"),
    "no candidate": (["make"], [], "Missing argument 'candidate'"),
    "no weights": (["make", "make"], ["--weights", "missing.safetensors"], "no weights file missing.safetensors"),
    "no examples": (["make", "make"], ["--examples", "{models}:no_examples"], "at least one is required"),
    "a reference that fails": (["make", "make"], ["--examples", "{models}:bad_examples"], "fails on example 0"),
    "another kind of call": (["make", "longer"], [], "not of the candidate"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_ends_with_1_and_one_line(kind: str, models: str, capfd: pytest.CaptureFixture[str]) -> None:
    factories, more, message = BAD[kind]
    places = [f"{models}:{factory}" for factory in factories]
    options = ["--examples", f"{models}:examples", *(word.format(models=models) for word in more)]
    assert cli.main(["verify", *places, *options, "--json"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err
