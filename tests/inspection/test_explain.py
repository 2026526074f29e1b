"""One value of a run in plain words: what it depends on, what became of it, and why a pass left it alone."""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor, nn

import foldfx
from foldfx.cli import main
from foldfx.errors import DiffError
from foldfx.inspection.explain import explain, explain_why_not


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gates, self.router = nn.Embedding(6, 16), nn.Linear(16, 64), nn.Linear(64, 5)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.router(torch.tanh(self.gates(self.embedding(ids))).cumsum(1)).topk(2).indices


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("explain") / "run"
    pipeline = foldfx.Pipeline((foldfx.FoldTokens(), foldfx.passes.FoldRoutes()), disable=["fold_routes"], probe_contexts=0)
    foldfx.compile(Words(), [((torch.randint(6, (2, 3)),), {})], pipeline=pipeline, run_dir=folder)
    return folder


def shown(text: str) -> str:
    text = re.sub(r"[\w./-]*test_explain\.py:\d+", "FILE", text)
    text = re.sub(r"(B of tables|stored plain;) .*", r"\1 BALANCE", text)
    return re.sub(r"max-abs \S+, relative L2 \S+|bitwise equal", "FIGURES", text.replace("numerically equal, ", ""))


def test_a_folded_value(run: Path) -> None:
    assert_expected_inline(
        shown(explain(run, "tanh")),
        """\
tanh = aten.tanh(linear)  # float32[s0, s1, 64]; FILE
depends on token(ids), laid out [ids[0]][ids[1]][64]
  tanh (FILE): aten.tanh.default sees one row at a time (rule pointwise)
  linear (module gates, FILE): aten.linear.default sees one row at a time (rule linear)
  embedding (module embedding, FILE): aten.embedding.default sees one row at a time (rule embedding)
  embedding_weight (state embedding.weight): constant [6, 16]
  ids (input ids): token ids, domain 0..5 (rows of the smallest table it indexes, embedding (6 rows, module embedding, FILE))
  gates_weight (state gates.weight): constant [64, 16]
  gates_bias (state gates.bias): constant [64]
what became of it
  fold_tokens: tanh is gone, 3:1: embedding, linear, tanh → lookup_default; its readers take lookup_default
  lowering: lookup_default is gone, 1:1: lookup_default → embedding_default; its readers take embedding_default
passes
  [applied] fold_tokens, token input ids, values tanh: 4,736 B of state became 1,536 B of tables BALANCE
tables
  foldfx_tables.ids.tanh: 6 rows of tanh (width 64); stored plain; BALANCE
verified
  table, as built [1, 6]: full domain of 6 ids, FIGURES
  table, 2-D [4, 1]: full domain of 6 ids, FIGURES
  table, strided [1, 6] strided: full domain of 6 ids, FIGURES
  table, scalar []: full domain of 6 ids, FIGURES
  table, row counts 2 to 1031 rows: full domain of 6 ids, FIGURES
  table, empty [1, 0]: no rows, FIGURES""",
    )


def test_a_value_that_stayed_says_where_token_only_ends(run: Path) -> None:
    text = explain(run, "cumsum")
    assert "\ndepends on context + token(ids)\n  cumsum (" in text
    assert text.count("it would mix the rows of different tokens") == 2
    assert "what became of it\n  it stayed as it is\n" in text


def test_a_decision(run: Path) -> None:
    assert "\ndecision\n  top-k of linear_1, over context" in explain(run, "topk")


def test_a_value_that_a_pass_added(run: Path) -> None:
    text = explain(run, "lookup_default")
    assert "\nadded by fold_tokens, for tanh\n" in text
    assert "lowering: lookup_default is gone, 1:1: lookup_default → embedding_default; its readers take" in text


@pytest.mark.parametrize(
    ("pass_name", "name", "says"),
    [
        ("fold_tokens", "tanh", "[applied] fold_tokens, token input ids, values tanh: "),
        ("fold_tokens", "linear", "but in its step linear is gone, 3:1: embedding, linear, tanh → lookup_default"),
        ("fold_tokens", "cumsum", "no rule application of fold_tokens was about cumsum\nits step left the value as it was"),
        ("fold_tokens", "cumsum", "it would mix the rows of different tokens"),
        ("fold_routes", "topk", "[disabled] fold_routes, the whole pass: disabled by name"),
        ("lowering", "linear", "fold_tokens had removed it before: linear is gone"),
        ("lowering", "tanh", "but in its step lookup_default is gone, 1:1"),
        ("fold_tokens", "embedding_default", "it came after fold_tokens had run"),
        ("splice", "tanh", "splice is no pass of this run; there were fold_tokens, lowering"),
    ],
)
def test_why_not(pass_name: str, name: str, says: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in explain_why_not(run, pass_name, name)
    assert main(["explain", str(run), "--why-not", pass_name, name]) == 0
    assert says in capsys.readouterr().out


def test_a_terminal_without_arrows_gets_them_escaped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["explain", str(run), "lookup_default"]) == 0
    sys.stdout.flush()
    assert rb"lookup_default \u2192 embedding_default" in written.getvalue()


def test_what_is_not_there_is_an_error(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DiffError, match=r"has a value 'tan'; did you mean one of \['tanh'\]"):
        explain(run, "tan")
    assert main(["explain", str(tmp_path), "tanh"]) == 1
    assert "so it is not a run directory" in capsys.readouterr().err.replace(f"so {tmp_path}", "so it")
    assert main(["explain", str(run / "report.json"), "tanh"]) == 1
    assert "report.json is not a run directory" in capsys.readouterr().err


@pytest.mark.parametrize("facts", ["{}", '{"values": 3}', '{"values": [{"op": "call_function"}]}'])
def test_facts_that_list_no_values_are_an_error(
    facts: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    assert main(["explain", str(copy), "tanh"]) == 0
    (copy / "facts.json").write_text(facts)
    assert main(["explain", str(copy), "tanh"]) == 1
    assert "facts.json does not list values by their names; write the run anew" in capsys.readouterr().err
