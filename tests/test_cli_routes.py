"""`foldfx routes export | show | compare`, and objectives on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foldfx.cli import main
from foldfx.runtime.route_file import RouteFile

pytestmark = pytest.mark.usefixtures("own_folder")

FILE = """
import torch
from torch import nn

class Router(nn.Module):
    def __init__(self, scale=1.0, mixed=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.router = nn.Embedding(30, 8), nn.Linear(8, 5)
        self.experts = nn.Parameter(torch.randn(5, 8))
        with torch.no_grad():
            self.router.weight[0] *= scale
        self.mixed = mixed

    def forward(self, ids, hidden):
        rows = self.embedding(ids)
        top = self.router(rows.cumsum(1) if self.mixed else rows).topk(2)
        return hidden + (top.values.softmax(-1)[..., None] * self.experts[top.indices]).sum(-2)

class Balanced(Router):
    def forward(self, ids, hidden):
        self.load = self.router(self.embedding(ids)).softmax(-1).mean()
        return super().forward(ids, hidden)

def other():
    return Router(1.5)

def contextual():
    return Router(mixed=True)

def examples():
    return [((torch.randint(30, (2, 3)), torch.randn(2, 3, 8)), {})]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(FILE)
    return path


def export(file: Path, model: str, out: str, *more: str) -> tuple[int, Path]:
    path = file.parent / out
    return main(["routes", "export", str(path), "--factory", f"{file}:{model}", "--examples", f"{file}:examples", *more]), path


def test_routes_are_written_shown_and_compared(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, one = export(file, "Router", "one")
    assert code == 0
    assert "2 expert(s) for each of 30 tokens, torch.uint8" in capsys.readouterr().out
    (routes,) = RouteFile.load(one).routes
    assert list(routes.experts.shape) == [1, 2, 30]
    assert main(["routes", "show", str(one), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sum(shown["routes"][0]["occupancy"]) == 60
    code, two = export(file, "other", "two")
    assert code == 0
    capsys.readouterr()
    assert main(["routes", "compare", str(one), str(one)]) == 0
    assert capsys.readouterr().out == "topk: equal\nof the same model\n"
    assert main(["routes", "compare", str(one), str(two), "--json"]) == 2
    compared = json.loads(capsys.readouterr().out)
    other = RouteFile.load(two).routes[0]
    differs = (routes.experts.sort(1).values != other.experts.sort(1).values)[0].any(0).nonzero().reshape(-1)
    assert compared["routes"][0]["sets"] == differs.tolist() != []
    assert compared["same_model"] is False
    assert torch.equal(routes.tokens(), torch.arange(30))


def test_a_model_without_token_only_routes_writes_nothing_and_says_why(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, path = export(file, "contextual", "none")
    assert code == 1
    assert "no decision was folded: fold_routes refused: route topk" in capsys.readouterr().err
    assert not path.exists()


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--factory", f"{file}:no_such_function", "--examples", f"{file}:examples"]
    assert main(["routes", "export", str(file.parent), *words]) == 1
    assert f"{file.parent} is a directory; name a file" in capsys.readouterr().err


def test_routes_of_a_model_that_writes_an_attribute_are_exported_where_it_is_declared(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, path = export(file, "Balanced", "undeclared")
    assert (code, path.exists()) == (1, False)
    assert "load" in capsys.readouterr().err
    code, path = export(file, "Balanced", "declared", "--observable", "load")
    assert code == 0
    assert RouteFile.load(path).routes[0].experts.shape[1:] == (2, 30)


def test_objectives_are_taken_by_compile(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["compile", "--factory", f"{file}:Router", "--examples", f"{file}:examples"]
    assert main([*common, "--objective", "routes"]) == 0
    assert "[applied] fold_routes" in capsys.readouterr().out
    assert main([*common, "--objective", "routes", "--max-table-bytes", "10"]) == 0
    assert "the budget is 10 B" in capsys.readouterr().out
    assert main([*common, "--objective", "speed"]) == 1
    assert "unknown objective 'speed'" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "searched"), [(["--probe-contexts", "32"], 32), (["--probe-contexts", "0"], None)])
def test_the_search_for_near_ties_has_the_budget_stated(
    more: list[str], searched: int | None, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, examples = f"{file}:contextual", f"{file}:examples"
    assert main(["compile", "--factory", model, "--examples", examples, "--json", *more]) == 0
    (decision,) = json.loads(capsys.readouterr().out)["decisions"]
    assert (decision["probe"] or {}).get("contexts") == searched
