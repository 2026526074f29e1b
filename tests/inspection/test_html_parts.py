"""Pieces of the page: escaping, plots, drawings, and what the evidence does not cover."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foldfx.analysis import capture
from foldfx.inspection.diff import diff_graphs
from foldfx.inspection.html.charts import errors_by_class, margin_histogram, storage_waterfall
from foldfx.inspection.html.coverage import not_covered
from foldfx.inspection.html.decisions import decisions
from foldfx.inspection.html.graph_data import graph_data
from foldfx.inspection.html.markup import Html, data_script, element, table
from foldfx.inspection.html.neighbourhood import neighbourhoods
from foldfx.inspection.html.refusals import refusals
from foldfx.inspection.memory_view import memory_to_dict
from foldfx.inspection.outline import Held, Outline, Value

LIMITS = {"max_abs": {"torch.float32": 1e-5}}
EQUAL = {"max_abs": 0.0, "relative_l2": 0.0, "exact": True, "bitwise": True}
PROBE: dict[str, Any] = {
    "margins": {"examined": 113, "smallest": 0.0, "ties": 3, "powers_of_ten": {"-8": 10, "-1": 100}},
    "histogram": "0: 3, 1e-08: 10, 1e-01: 100",
    "deviation": 1e-7,
    "floor": 2e-7,
    "fragile": 13,
    "tokens": [{"token": 5, "margin": 0.0}, {"token": 9, "margin": 3e-8}],
    "flips": [
        {"token": 9, "margin": 3e-8, "counts": [1, 2, 3, 7], "order_only": False, "error": 0.5},
        {"token": 2674, "margin": 1e-8, "counts": [1], "order_only": True, "error": 0.75},
    ],
    "float32_share": None,
    "note": "",
}


def test_text_is_escaped_and_markup_is_not() -> None:
    made = element("p", "<b>&", element("b", '"'), None, [1, Html("<br/>")], class_='"<', title=None, hidden=True)
    assert made == '<p class="&quot;&lt;" hidden>&lt;b&gt;&amp;<b>"</b>1<br/></p>'
    assert "<td>&lt;x&gt;</td>" in table(["<"], [["<x>"]])


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", '"\\'])
def test_data_cannot_end_its_block_and_comes_back(text: str) -> None:
    made = data_script("d", {text: [text]})
    (inside,) = re.findall(r"^<script [^>]*>(.*)</script>$", made, re.DOTALL)
    assert not set(inside) & set("<>&\u2028\u2029")
    assert json.loads(inside) == {text: [text]}


def bars(picture: Html) -> list[tuple[float, float, str]]:
    """Left edge, width and kind of every bar."""
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="bar (\w+)"', picture)
    return [(float(x), float(width), kind) for x, width, kind in found]


def test_the_waterfall_goes_from_before_to_after() -> None:
    rewrites = [{"name": "one", "bytes_before": 800, "bytes_after": 200}, {"name": "two", "bytes_before": 0, "bytes_after": 50}]
    report = {"storage": {"before": {"logical": 1000}, "after": {"logical": 440}}, "rewrites": rewrites}
    picture = storage_waterfall(report)
    ends = [(x, x + width) for x, width, _ in bars(picture)]
    zero, scale = ends[0][0], (ends[0][1] - ends[0][0]) / 1000
    levels = [(round((one - zero) / scale), round((other - zero) / scale)) for one, other in ends]
    assert levels == [(0, 1000), (200, 1000), (200, 400), (400, 450), (440, 450), (0, 440)]
    assert [kind for _, _, kind in bars(picture)] == ["plain", "good", "new", "new", "good", "plain"]
    for text in ("1,000 B", "-800 B", "+200 B", "+50 B", "-10 B", "440 B"):
        assert f">{text}<" in picture


def test_the_histogram_marks_what_is_fragile() -> None:
    picture = margin_histogram(PROBE, "topk")
    assert [kind for _, _, kind in bars(picture)] == ["bad", "bad", "plain"]
    widths = [width for _, width, _ in bars(picture)]
    assert widths == sorted(widths)
    for label in ("exactly tied", "from 1e-08", "from 1e-01", ">100<"):
        assert label in picture


def test_errors_stand_beside_the_limit() -> None:
    def layout(name: str, error: float | None, bitwise: bool = False) -> dict[str, Any]:
        return {"kind": "table", "table": "x", "layout": name, "max_abs": error, "bitwise": bitwise}

    layouts = [layout("scalar", 1e-6), layout("2-D", 1e-4), layout("lost", None), layout("same", 0.0, True)]
    found = {"limits": LIMITS, "outputs": EQUAL, "layouts": [*layouts, layout("scalar", 1e-7)]}
    picture = errors_by_class(found)
    assert [kind for _, _, kind in bars(picture)] == ["good", "good", "bad", "bad", "good"]
    assert "limit 1e-05" in picture
    (limit,) = set(re.findall(r'<line x1="([\d.]+)"', picture))
    ends = [x + width for x, width, _ in bars(picture)]
    assert ends[1] < float(limit) < ends[2] < ends[3]
    assert "Bit by bit equal in all 1 kinds of call" in errors_by_class({"limits": LIMITS, "outputs": EQUAL, "layouts": []})


def values(*names: str) -> list[Value]:
    """A chain: each reads the one before, and state of its own."""
    found = [Value("input ids", "ids", "input", "ids")]
    for name in names:
        call = (f"aten.{name}.default", "{0}, {1}", (found[-1].key, f"state:{name}.weight"))
        found.append(Value(f"{name} #1", name, "call", *call, "float32[2]"))
    return found


def outline(label: str, chain: list[Value], state: tuple[str, ...]) -> Outline:
    end = Value("output #1", "output", "output", "output", "({0},)", (chain[-1].key,))
    held = {f"{name}.weight": Held("parameter", "float32[2]", 8, 8, digest=name) for name in state}
    return Outline(label, (*chain, end), held)


BEFORE = outline("captured", values("mul", "exp", "tanh", "neg"), ("mul", "exp", "tanh", "neg"))


def folded() -> Outline:
    """mul, exp and tanh became one lookup."""
    ids, lookup = values("lookup")
    lookup = replace(lookup, made_by="fold", stands_for=("tanh",))
    neg = replace(values("neg")[1], operands=(lookup.key, "state:neg.weight"))
    return outline("after-fold", [ids, lookup, neg], ("lookup", "neg"))


def test_a_rewrite_of_three_values_into_one_is_drawn() -> None:
    drawn = neighbourhoods(diff_graphs(BEFORE, folded()), 0, 1)
    assert drawn is not None
    assert "3:1 by fold: mul, exp, tanh → lookup" in drawn
    boxes = dict(re.findall(r'class="box (\w+)" role="button" tabindex="0" data-node="(\w+)"', drawn)[::-1])
    kinds = re.findall(r'class="box (\w+)"', drawn)
    assert sorted(kinds) == ["added", *["removed"] * 3, *["state"] * 4, "stays", "stays"]
    assert boxes["added"] == "lookup"
    assert drawn.count('class="edge removed"') == 7
    assert drawn.count('class="edge added"') == 3
    assert re.findall(r'data-node="(?:mul|lookup)" data-step="(\d)"', drawn) == ["0", "1"]


def test_boxes_of_a_drawing_do_not_lie_on_one_another() -> None:
    drawn = neighbourhoods(diff_graphs(BEFORE, folded()), 0, 1)
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="(\d+)" height="(\d+)"', str(drawn))
    rects = [tuple(map(float, each)) for each in found]
    for number, (x, y, width, height) in enumerate(rects):
        for other_x, other_y, *_ in rects[:number]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_nothing_is_drawn_where_nothing_changed() -> None:
    assert neighbourhoods(diff_graphs(BEFORE, BEFORE), 0, 1) is None


def test_a_moved_value_is_marked_on_both_sides() -> None:
    def called(name: str) -> Value:
        return Value(f"{name} #1", name, "call", f"aten.{name}.default", "{0}", ("input ids",))

    ids = Value("input ids", "ids", "input", "ids")
    end = Value("output #1", "output", "output", "output", "({0}, {1}, {2})", ("exp #1", "neg #1", "abs #1"))
    sides = [Outline("x", (ids, *map(called, names), end), {}) for names in (("exp", "neg", "abs"), ("neg", "abs", "exp"))]
    data = graph_data([("a", sides[0]), ("b", sides[1])], [(0, 1, diff_graphs(*sides))], {}, {})
    assert data["comparisons"][0]["parts"] == [1, [1, -1, "> ", "moved"], 2, [-1, 3, " >", "moved"], 1]


def report(**given: Any) -> dict[str, Any]:
    found = {"examples": 2, "layouts": [], "ranks": {}}
    plain = {
        "decisions": [],
        "specialised": [],
        "timing": None,
        "outcomes": [],
        "counterexamples": [],
        "trials": [],
        "blockers": [],
    }
    return {"verification": found, **plain, **given}


def test_the_flips_show_margin_and_error_the_worst_first() -> None:
    decision = {
        "node": "topk",
        "at": "m.py:3",
        "kind": "top-k",
        "score": "linear",
        "token_only": True,
        "feeds": [],
        "probe": PROBE,
    }
    text = re.sub(r"<[^>]+>", " ", decisions(report(decisions=[decision])))
    words = " ".join(text.split())
    assert "2 token(s) flip" in words
    assert "2674 1.00e-08 7.50e-01 order only 1 9 3.00e-08 5.00e-01 another choice 1–3, 7" in words
    assert "exactly tied: 5" in words


def test_refusals_are_grouped_by_reason_and_an_idle_pass_ran_0_times() -> None:
    def outcome(status: str, reason: str) -> dict[str, Any]:
        return {"pass": "fold", "status": status, "subject": "x", "reason": reason, "nodes": ["n"], "figures": {}}

    outcomes = [outcome("refused", f"{n} B of tables for {n * 2:,} B of state; no") for n in (10, 2000)]
    made = refusals(report(outcomes=[*outcomes, outcome("rejected", "wrong: y")]), ["captured", "fold", "idle", "lowering"])
    words = " ".join(re.sub(r"<[^>]+>", " ", made).split())
    assert "fold ran 0× 2 0 1 0 idle ran 0× 0 0 0 0 Not done" in words
    assert "refused 2×: 10 B of tables for 20 B of state" in words
    assert "rejected 1×: wrong: y" in words


def test_what_was_not_covered_follows_from_the_report() -> None:
    layout = {"kind": "table", "table": "linear", "layout": "scalar", "tokens": 64, "domain": 30_000, "note": "no such shape"}
    searched = {"margins": {"examined": 9}, "contexts": 1024, "space": 10**40, "note": "", "nearest": []}
    probed = [{"node": "topk", "kind": "top-k", "token_only": False, "probe": searched}]
    unprobed = [{"node": "gt", "kind": "comparison", "token_only": False, "probe": None}]
    found = {"examples": 2, "layouts": [layout], "ranks": {"ids": [2]}}
    said = not_covered(report(verification=found, decisions=[*probed, *unprobed], specialised=[{}]))
    for text in (
        "compared on 2 example call(s) and no others",
        "64 of 30,000 ids were sampled",
        "scalar: no such shape",
        "Ids ids of other than 2 dimension(s)",
        "1,024 of about 1e40 calls were searched",
        "Near ties of gt (comparison) were not searched for",
        "fixed at capture",
        "Speed was not measured",
        "Gradients",
    ):
        assert any(text in each for each in said), text
    less = not_covered(report(verification={"examples": 0, "layouts": [], "ranks": {}}, timing={"text": ""}))
    assert less[:2] == ["No complete outputs were compared.", "Speed was measured."]


class Views(nn.Module):
    """A view of an input, one of a value, one of state, and values of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.weight = nn.Embedding(5, 2), nn.Parameter(torch.ones(4))
        self.eval()

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.transpose(0, 1) + self.embedding(ids), (x * 2).view(-1), self.weight.view(2, 2) * 3


def test_memory_names_whose_it_is() -> None:
    found = memory_to_dict(capture(Views(), (torch.tensor([1, 2, 3]), torch.ones(2, 3)), dynamic=False))
    views = {name: roots for name, roots in found.items() if "view" in name or "transpose" in name}
    assert sorted(views.values()) == [[("mul", "must")], [("state weight", "must")], [("x", "must")]]
    assert not found.keys() & {"mul", "mul_1", "add", "x"}
