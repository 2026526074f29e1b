"""The report: a dictionary whose keys machines may rely on, and a text that says the same to people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import Tensor, nn

import foldfx
from foldfx.inspection import SCHEMA_VERSION
from foldfx.inspection.report import SCHEMA_FILE
from foldfx.passes import Pass, PassContext, PassResult

SCHEMA = json.loads(SCHEMA_FILE.read_text())


def problems(data: Any) -> list[str]:
    """Where `data`, as strict JSON, is not what the schema in the package says."""
    found = Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(data, allow_nan=False)))
    return [f"{error.json_path}: {error.message}" for error in found]


class Model(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(5, inner), nn.Linear(inner, width)
        self.eval()

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        return torch.relu(self.project(self.embedding(ids))) * scale


class Poison:
    """A pass that puts a NaN into every table."""

    name: ClassVar[str] = "poison"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        for module in list(program.module.modules()):
            for name, table in list(module.named_buffers(recurse=False)):
                setattr(module, name, torch.full_like(table, torch.nan))
        return PassResult(program, ())


def fold(inner: int, width: int, *more: Pass) -> foldfx.Result:
    args = torch.randint(5, (2, 3)), torch.randn(2, 3, 1)
    pipeline = foldfx.Pipeline((foldfx.FoldTokens(), *more))
    return foldfx.compile(Model(inner, width), [foldfx.Example(args)], pipeline=pipeline, dynamic=False)


RUNS: dict[str, Callable[[], foldfx.Result]] = {
    "accepted": lambda: fold(16, 4),
    "unchanged": lambda: fold(1, 40),
    "rolled_back": lambda: fold(16, 4, Poison()),
}


@pytest.fixture(scope="module")
def accepted() -> foldfx.Result:
    return RUNS["accepted"]()


def test_the_dictionary_has_these_keys_and_types(accepted: foldfx.Result) -> None:
    data = accepted.report.to_dict()
    assert problems(data) == []
    assert data["schema_version"] == SCHEMA_VERSION == 1
    assert next(iter(data)) == "schema_version"
    assert data["torch"] == torch.__version__
    assert all(data[key] for key in ("outcomes", "rewrites", "kernels", "blockers", "specialised"))


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("key", "value"), [("status", 1), ("torch", None), ("extra", "x"), ("decisions", [{}])])
def test_the_schema_check_sees_a_change(accepted: foldfx.Result, key: str, value: object) -> None:
    assert problems(accepted.report.to_dict() | {key: value}) != []


@pytest.mark.parametrize("status", RUNS)
def test_it_is_json_whatever_the_ending(status: str) -> None:
    """Strict JSON: an infinite difference must not make a report unreadable."""
    result = RUNS[status]()
    assert result.status == status
    data = json.loads(json.dumps(result.report.to_dict(), allow_nan=False))
    assert data["status"] == status
    assert problems(data) == []


def test_bytes_are_those_of_the_modules(accepted: foldfx.Result) -> None:
    data = accepted.report.to_dict()
    kept = sum(tensor.numel() * tensor.element_size() for tensor in accepted.module.state_dict().values())
    held = sum(tensor.numel() * tensor.element_size() for tensor in Model(16, 4).state_dict().values())
    assert data["storage"] == {"before": {"logical": held, "backing": held}, "after": {"logical": kept, "backing": kept}}
    (rewrite,) = data["rewrites"]
    assert rewrite["bytes_before"] - rewrite["bytes_after"] == held - kept
    tables = [accepted.module.state_dict()[table["state"]] for table in rewrite["tables"]]
    assert rewrite["bytes_after"] == sum(table.numel() * table.element_size() for table in tables)


def stripped(report: object) -> str:
    """The text without figures, paths and names of values."""
    text = re.sub(r"[^\s(]+\.py:\d+", "FILE", str(report))
    text = re.sub(r"max-abs \S+, relative L2 \S+|bitwise equal", "FIGURES", text.replace("numerically equal, ", ""))
    text = re.sub(r"linear|relu", "VALUE", text)
    return re.sub(r"(B of tables) \(.*\)", r"\1 (BALANCE)", text)


def test_the_text(accepted: foldfx.Result) -> None:
    assert (
        stripped(accepted.report)
        == """\
foldfx: accepted
  logical  bytes            592 →             80  (-512, -86.5 %)
  backing  bytes            592 →             80  (-512, -86.5 %)
  token input ids: 5 ids (rows of the smallest table it indexes, embedding (5 rows, module embedding, FILE))
rewrites
  [applied] fold_tokens, token input ids, values VALUE: 592 B of state became 80 B of tables (BALANCE)
  lookup_default runs on aten.embedding (reference)
where token-only values end
  mul (FILE): aten.mul.Tensor reads scale, which depends on context
verification: equivalent_on
  complete outputs of 1 example(s): FIGURES
  table of VALUE, as built [2, 3]: full domain of 5 ids, FIGURES
  table of VALUE, 2-D [4, 1]: full domain of 5 ids, FIGURES
  table of VALUE, strided [2, 3] strided: full domain of 5 ids, FIGURES
  table of VALUE, scalar []: full domain of 5 ids, FIGURES
  ids=5: original raised IndexError, folded raised IndexError
  ids=-1: original raised IndexError, folded raised IndexError
  ids=-6: original raised IndexError, folded raised IndexError
  ids ids: verified with 2 dimension(s)
fixed at capture
  ids: dimension 0 is 2
  ids: dimension 1 is 3
  scale: dimension 0 is 2
  scale: dimension 1 is 3
  scale: dimension 2 is 1"""
    )


def test_a_refusal_says_why_in_text_and_data() -> None:
    result = RUNS["unchanged"]()
    (outcome,) = result.report.to_dict()["outcomes"]
    assert outcome["status"] == "refused"
    assert f"not done\n  [refused] fold_tokens, {outcome['subject']}: {outcome['reason']}" in str(result.report)
    assert f"{5 * 40 * 4:,} B" in outcome["reason"]
