"""The report on a terminal, as expected (EXPECTTEST_ACCEPT=1 writes the texts anew), and that nothing in it is cut or read."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console, RenderableType
from rich.errors import MarkupError

from foldfx.inspection.report import SCHEMA_FILE, Report
from foldfx.inspection.terminal import terminal_bisection, terminal_report
from foldfx.inspection.terminal_parts import human_bytes, literal

EXPECTED = Path(__file__).parent / "expected"
BITWISE = {"max_abs": 0.0, "relative_l2": 0.0, "exact": True, "bitwise": True}
ROUNDED = {"max_abs": 3.8e-6, "relative_l2": 2.5e-7, "exact": False, "bitwise": False}
INFINITE = {"max_abs": None, "relative_l2": None, "exact": False, "bitwise": False}
LIMITS: dict[str, Any] = {"max_abs": {}, "relative_l2": {}, "relative_l2_floor": 0, "wide_factor": 1}


def storage(before: int, after: int) -> dict[str, Any]:
    return {"before": {"logical": before, "backing": before}, "after": {"logical": after, "backing": after}}


def outcome(status: str, subject: str, reason: str, *nodes: str, **figures: int) -> dict[str, Any]:
    given = {"pass": "fold_tokens", "status": status, "subject": subject, "reason": reason}
    return {**given, "nodes": list(nodes), "figures": figures}


def layout(table: str, name: str, shape: str, figures: dict[str, Any], tokens: int = 29) -> dict[str, Any]:
    said = {"kind": "table", "table": table, "layout": name, "shape": shape, "tokens": tokens, "domain": 29, "note": ""}
    return {**said, **figures}


def report(**given: Any) -> Report:
    """A report of a run that did nothing, but for what is given."""
    nothing = ("outcomes", "rewrites", "kernels", "blockers", "decisions", "counterexamples", "trials", "specialised")
    verification = {"verdict": "equivalent_on", "because": [], "examples": 2, "outputs": BITWISE, "layouts": []}
    plain = {
        "status": "unchanged",
        "observables": [],
        "tokens": {"ids": {"size": 29, "reachable": 29, "stated": False, "because": "rows of embedding (model.py:7)"}},
        "storage": storage(1_608_704, 1_608_704),
        **{name: [] for name in nothing},
        "verification": {**verification, "probes": {}, "ranks": {"ids": [2]}, "limits": LIMITS} | given.pop("found", {}),
        "dynamic": {},
        "timing": None,
    }
    made = Report({**plain, **given})
    Draft202012Validator(json.loads(SCHEMA_FILE.read_text())).validate(json.loads(json.dumps(made.to_dict())))
    return made


def applied() -> Report:
    raised = "original raised IndexError, folded raised IndexError"
    layouts = [
        *(layout(table, *call) for table in ("linear", "tanh") for call in (("as built", "[29]", BITWISE),)),
        *(layout("linear", *call) for call in (("2-D", "[4, 7]", ROUNDED), ("scalar", "[]", {**ROUNDED, "max_abs": 9.5e-6}))),
        layout("linear", "empty", "[0]", BITWISE, tokens=0),
        layout("tanh", "scalar", "[]", {**ROUNDED, "exact": True, "max_abs": 0.0}, tokens=8),
    ]
    said = "819,200 B of state became 89,088 B of tables (4*V*e_weight + 4*p_gates → 4*V*w_linear B; saves for V < 385.5)"
    return report(
        status="accepted",
        observables=["load_balance_loss"],
        storage=storage(1_608_704, 878_592),
        outcomes=[
            outcome("applied", "ids, values linear, tanh", said, "linear", "tanh", bytes_before=819_200, bytes_after=4_096),
            {**outcome("applied", "neg_1", "-(-x) is x", "neg", "neg_1"), "pass": "double_negation"},
        ],
        kernels=[
            {"node": f"lookup{number}", "provider": "reference", "kernel": "aten.embedding", "declined": []}
            for number in ("", "_1")
        ],
        blockers=["add (model.py:9): aten.add.Tensor reads hidden, which depends on context"],
        found={"layouts": layouts, "probes": {"size s0=0": "both returned", "ids=29": raised, "ids=-1": raised}},
        trials=[{"rewrites": ["fold_tokens: linear", "double_negation: neg"], "why": ""}, {"rewrites": [], "why": "differs"}],
        timing={"text": "246.5 µs → 186.5 µs, 1.32×"},
        specialised=[{"input": "hidden", "what": f"dimension {axis} is {size}"} for axis, size in ((0, 2), (1, 256))],
    )


def refused() -> Report:
    pays = [
        f"does not pay: tables of {rows:,} × 40 = {rows * 40:,} B for 96 B of state" for rows in (100, 200, 300, 4000, 5000)
    ]
    because = ["example 0: output <root>: max-abs inf exceeds 1e-05", "table of relu, layout scalar []: nan instead of 0.2"]
    return report(
        status="rolled_back",
        outcomes=[
            outcome("rejected", "ids, values relu", "wrong: table of relu: nan instead of 0.2 at [0], ids 0", "relu"),
            *(outcome("refused", f"ids, values linear_{number}", reason) for number, reason in enumerate(pays)),
            *(outcome("refused", f"ids, values gate_{number}", "out of fuel: no rewrite is left") for number in range(14)),
            {**outcome("no_match", "the program", "nothing chooses by a float score"), "pass": "fold_routes"},
        ],
        blockers=[f"mul_{number} (model.py:{number}): aten.mul.Tensor reads scale, that is context" for number in range(14)],
        found={"verdict": "different", "because": because, "outputs": INFINITE},
        trials=[{"rewrites": ["fold_tokens: relu"], "why": "; ".join(because)}, {"rewrites": [], "why": ""}],
    )


def router(flips: int = 2) -> Report:
    probe = {
        "margins": {"examined": 300, "smallest": 0.0, "ties": 1, "powers_of_ten": {"-8": 3, "-1": 296}},
        "histogram": "0: 1, 1e-08: 3, 1e-01: 296",
        "deviation": 1e-7,
        "floor": 2.7e-7,
        "fragile": 4,
        "tokens": [{"token": 41, "margin": 0.0}, {"token": 7, "margin": 1.9e-8}],
        "flips": [
            {"token": number, "margin": 1.9e-8, "counts": [1, 2, 3, 7], "order_only": number == 1, "error": error}
            for number, error in enumerate([None, 9.27, *[0.5] * flips][:flips])
        ],
        "float32_share": None,
        "note": "",
    }
    plain = {"at": "model.py:36", "score": "linear_1", "token_only": True, "feeds": ["output 0"]}
    return report(
        decisions=[
            {**plain, "node": "gt", "kind": "comparison", "token_only": False, "probe": None},
            {**plain, "node": "topk", "kind": "top-k", "probe": probe},
        ]
    )


REPORTS = {"applied": applied, "refused": refused, "router": router}


def shown(body: RenderableType, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(body)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("kind", REPORTS)
def test_the_text(kind: str) -> None:
    text, path = shown(terminal_report(REPORTS[kind]())), EXPECTED / f"terminal_{kind}.txt"
    if os.environ.get("EXPECTTEST_ACCEPT"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("kind", ["applied", "router"])
def test_every_name_and_figure_of_the_plain_text_is_there_whole(kind: str, width: int) -> None:
    """Byte counts apart, which stand in human units: they are in the plain text and in the data."""
    made = REPORTS[kind]()
    text = shown(terminal_report(made), width)
    assert max(map(len, text.splitlines())) <= width
    words = set(re.findall(r"[a-zA-Z_][\w-]*[\w]", str(made))) - LEFT_TO_LAYOUT
    figures = {"1.53 MiB", "858.00 KiB", "-713.00 KiB", "-45.4 %", "246.5"} if kind == "applied" else {"1.90e-08", "9.27e+00"}
    assert {each for each in words | figures if each not in text} == set()


LEFT_TO_LAYOUT = {"numerically", "runs", "only", "them", "up", "whole"}
"""Words of the plain text that tables have no need of."""


def test_a_name_longer_than_its_column_is_folded_and_not_cut() -> None:
    name = "ж" * 150
    plain = report(
        blockers=[f"{name} (model.py:3): reads x"],
        outcomes=[outcome("refused", name, name)],
        specialised=[{"input": name, "what": name}],
    )
    for width in (30, 60, 100):
        text = shown(terminal_report(plain), width)
        assert text.count("ж") == 5 * 150
        assert "…" not in text


ODDITIES = ["[red]loud[/red]", "[/]", ":warning:", "[link=x]y[/link]", "\\[b]"]


@pytest.mark.parametrize("name", ODDITIES)
def test_text_of_the_model_is_shown_as_it_is(name: str) -> None:
    named = report(
        observables=[name],
        tokens={name: {"size": 2, "reachable": 1, "stated": True, "because": name}},
        outcomes=[outcome("applied", name, name), outcome("rejected", name, f"{name}: {name}")],
        kernels=[{"node": name, "provider": name, "kernel": name, "declined": []}],
        blockers=[f"{name} ({name}:1): {name}"],
        decisions=[{"node": name, "at": name, "kind": name, "score": name, "token_only": True, "feeds": [name], "probe": None}],
        found={
            "layouts": [layout(name, name, name, BITWISE)],
            "because": [name, name],
            "probes": {name: name},
            "ranks": {name: [1]},
        },
        trials=[{"rewrites": [name], "why": name}] * 2,
        specialised=[{"input": name, "what": name}],
        timing={"text": name},
    )
    assert shown(terminal_report(named)).count(name) == 34
    assert shown(terminal_bisection(named)).count(name) == 7


@pytest.mark.parametrize("name", ODDITIES)
def test_the_same_text_would_be_read_if_it_were_not_literal(name: str) -> None:
    try:
        read = shown(name)
    except MarkupError:
        return
    assert name not in read
    assert name in shown(literal(name))


def test_escapes_reach_no_terminal() -> None:
    named = report(blockers=["\x1b[2Jmul\x9b (model.py:1): \a reads\rx\u202e"])
    text = shown(terminal_report(named))
    assert r"\x1b[2Jmul\x9b" in text
    assert r"\x07 reads\rx\u202e" in text
    assert not [each for each in text if not each.isprintable() and each != "\n"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (-512, "-512 B"),
        (10_239, "10,239 B"),
        (10_240, "10.00 KiB"),
        (-730_112, "-713.00 KiB"),
        (1_608_704, "1.53 MiB"),
        (125_222_912, "119.42 MiB"),
        (3 * 1024**3, "3.00 GiB"),
        (5 * 1024**4, "5.00 TiB"),
    ],
)
def test_bytes_in_human_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_long_lists_say_how_many_are_left_out_and_a_bisection_leaves_nothing_out() -> None:
    tables = [f"linear_{number}" for number in range(48)]
    calls = [(f"layout {number}", "[4]") for number in range(12)]
    layouts = [layout(table, *call, {**ROUNDED, "max_abs": number}) for number, table in enumerate(tables) for call in calls]
    rewrites = [f"fold_tokens: {table}" for table in tables]
    large = report(
        outcomes=[outcome("refused", f"ids, values {table}", f"its score {table} is context: x") for table in tables],
        blockers=[f"{table} (model.py:1): reads x" for table in tables],
        found={"layouts": layouts},
        trials=[{"rewrites": rewrites[:count], "why": "differs"} for count in range(30)],
    )
    text = shown(terminal_report(large))
    assert len(text.splitlines()) < 150
    assert len(str(large).splitlines()) > 700
    text = " ".join(text.split())
    assert "… and 36 more: --json has all, and report.json of --run-dir" in text
    assert "and 36 more: full domain of 29 ids" in text
    assert "4.70e+01" in text
    bisection = shown(terminal_bisection(large))
    assert "more" not in bisection
    assert bisection.count("differs") == 30
    assert len(re.findall(r"linear_2\b", bisection)) == 27


def test_decisions_with_tokens_that_flip_come_first_and_flips_are_counted() -> None:
    text = shown(terminal_report(router(flips=20)))
    assert text.index("topk: top-k") < text.index("gt: comparison")
    assert "20 token(s) flip" in text.splitlines()[0]
    assert "… and 8 more" in text


def test_a_report_of_nothing_is_short() -> None:
    text = shown(terminal_report(report(tokens={})))
    assert text.startswith("foldfx: unchanged   1.53 MiB as before · equivalent_on\n")
    assert [line for line in text.splitlines() if line and not line.startswith(" ")][1:] == [
        "storage",
        "verification: equivalent_on",
    ]
