"""The report: a dictionary whose keys machines may rely on, and a text that says the same to people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.inspection import SCHEMA_VERSION
from foldfx.passes import Pass, PassContext, PassResult

STORAGE = {"logical": int, "backing": int}
FIGURES = {"max_abs": float | None, "relative_l2": float | None, "exact": bool, "bitwise": bool}
LAYOUT = {"kind": str, "table": str, "layout": str, "shape": str, "tokens": int, "domain": int, **FIGURES, "note": str}
SCHEMA: dict[str, Any] = {
    "schema_version": int,
    "torch": str,
    "status": str,
    "observables": [str],
    "tokens": {"ids": {"size": int, "reachable": int, "stated": bool, "because": str}},
    "storage": {"before": STORAGE, "after": STORAGE},
    "outcomes": [{"pass": str, "status": str, "subject": str, "reason": str, "nodes": [str], "figures": dict}],
    "rewrites": [
        {
            "name": str,
            "tables": [
                {
                    "inputs": [str],
                    "state": str,
                    "rows": int,
                    "values": [{"name": str, "at": str, "width": int}],
                    "stored": str,
                }
            ],
            "classes": [{"rule": str, "tables": [{"rows": int, "positions": [int]}], "evidence": [str]}],
            "removed": [str],
            "bytes_before": int,
            "bytes_after": int,
            "balance": str,
            "break_even_vocabulary": float | None,
        }
    ],
    "kernels": [{"node": str, "provider": str, "kernel": str, "declined": list}],
    "blockers": [str],
    "decisions": [{"node": str, "at": str, "kind": str, "score": str, "token_only": bool, "feeds": [str]}],
    "verification": {
        "verdict": str,
        "because": [str],
        "examples": int,
        "outputs": FIGURES,
        "layouts": [
            {"kind": str, "table": str, "layout": str, "shape": str, "tokens": int, "domain": int, **FIGURES, "note": str}
        ],
        "probes": {"ids=5": str, "ids=-1": str, "ids=-6": str},
        "ranks": {"ids": [int]},
        "limits": {"max_abs": dict, "relative_l2": dict, "relative_l2_floor": float, "wide_factor": float},
    },
    "counterexamples": [
        {
            "call": str,
            "node": str,
            "tokens": [int],
            "where": str,
            "what": str,
            "index": list | None,
            "expected": str | None,
            "found": str | None,
        }
    ],
    "trials": [{"rewrites": [str], "why": str}],
    "specialised": [{"input": str, "what": str}],
    "dynamic": dict,
    "timing": dict | None,
}


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


def mismatches(value: Any, schema: Any, path: str = "report") -> list[str]:
    """Where `value` is not what `schema` says: types, a dictionary with exactly these keys, a list of such items."""
    if isinstance(schema, type | UnionType):
        fits = isinstance(value, schema) or (schema is dict and isinstance(value, Mapping))
        return [] if fits else [f"{path}: {type(value).__name__}, not {schema}"]
    if isinstance(schema, list):
        return [text for place, item in enumerate(value) for text in mismatches(item, schema[0], f"{path}[{place}]")]
    if value.keys() != schema.keys():
        return [f"{path}: keys {sorted(value)}, not {sorted(schema)}"]
    return [text for key in schema for text in mismatches(value[key], schema[key], f"{path}.{key}")]


def test_the_dictionary_has_these_keys_and_types(accepted: foldfx.Result) -> None:
    data = accepted.report.to_dict()
    assert mismatches(json.loads(json.dumps(data)), SCHEMA) == []
    assert data["schema_version"] == SCHEMA_VERSION == 1
    assert next(iter(data)) == "schema_version"
    assert data["torch"] == torch.__version__
    assert all(data[key] for key in ("outcomes", "rewrites", "kernels", "blockers", "specialised"))


@pytest.mark.parametrize(("key", "value"), [("status", 1), ("torch", None), ("extra", "x")])
def test_the_schema_check_sees_a_change(accepted: foldfx.Result, key: str, value: object) -> None:
    assert mismatches(accepted.report.to_dict() | {key: value}, SCHEMA) != []


@pytest.mark.parametrize("status", RUNS)
def test_it_is_json_whatever_the_ending(status: str) -> None:
    """Strict JSON: an infinite difference must not make a report unreadable."""
    result = RUNS[status]()
    assert result.status == status
    data = json.loads(json.dumps(result.report.to_dict(), allow_nan=False))
    assert data["status"] == status
    assert mismatches(data, SCHEMA) == []


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
