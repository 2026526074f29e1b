"""The text, Markdown and JSON forms of six small rewrites, as expected. EXPECTTEST_ACCEPT=1 writes them anew."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

import foldfx
from foldfx.inspection.diff import Diff, diff_graphs
from foldfx.inspection.diff_markdown import diff_markdown
from foldfx.inspection.diff_text import diff_text
from foldfx.inspection.outline_of import outline_of
from foldfx.passes.builder import Builder

aten = torch.ops.aten
EXPECTED = Path(__file__).parent / "expected"


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gates = nn.Embedding(6, 16), nn.Linear(16, 64)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.gates(self.embedding(ids))).cumsum(1)


class Sums(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        twice = torch.neg(torch.neg(a))
        return torch.exp(twice * b + 1), torch.sin(b)


def captured(model: nn.Module, *args: Tensor) -> foldfx.Program:
    return foldfx.capture(model.eval(), args, tokens=None if isinstance(model, Words) else (), dynamic=False)


def sums() -> foldfx.Program:
    return captured(Sums(), torch.randn(2, 3), torch.randn(2, 3))


def node(program: foldfx.Program, name: str) -> torch.fx.Node:
    return next(each for each in program.graph.nodes if each.name == name)


def put(program: foldfx.Program, old: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let `new` take the place of `old` and of what only it reads."""
    old.replace_all_uses_with(new)
    program.graph.eliminate_dead_code()


def fold() -> tuple[foldfx.Program, foldfx.Program]:
    program = captured(Words(), torch.randint(6, (2, 3)))
    return program, foldfx.Pipeline().rewrite(program)[0]


def deletion() -> tuple[foldfx.Program, foldfx.Program]:
    """-(-a) is a."""
    program, other = sums(), sums()
    put(other, node(other, "neg_1"), node(other, "a"))
    return program, other


def rewire() -> tuple[foldfx.Program, foldfx.Program]:
    """The sine of the other input."""
    program, other = sums(), sums()
    node(other, "sin").args = (node(other, "a"),)
    return program, other


def many_to_one() -> tuple[foldfx.Program, foldfx.Program]:
    program, other = sums(), sums()
    add = node(other, "add")
    new = Builder(other.module, add, "fuse").call(aten.addcmul.default, node(other, "a"), node(other, "a"), node(other, "b"))
    put(other, add, new)
    return program, other


def one_to_many() -> tuple[foldfx.Program, foldfx.Program]:
    program, other = sums(), sums()
    sin = node(other, "sin")
    build = Builder(other.module, sin, "split")
    shifted = build.call(aten.sub.Tensor, node(other, "b"), 1.5)
    put(other, sin, build.call(aten.cos.default, build.call(aten.abs.default, shifted)))
    return program, other


def compared(programs: tuple[foldfx.Program, foldfx.Program]) -> Diff:
    return diff_graphs(*(outline_of(each, label) for each, label in zip(programs, ("captured", "rewritten"), strict=True)))


def shown(text: str) -> str:
    """Without what depends on the place in this file, or on rounding."""
    return re.sub(r"\b[0-9a-f]{64}\b", "sha256", re.sub(r"\.py:\d+", ".py:N", text))


def assert_expected_file(name: str, text: str) -> None:
    path = EXPECTED / name
    if os.environ.get("EXPECTTEST_ACCEPT"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("rewrite", [fold, deletion, rewire, many_to_one, one_to_many])
def test_markdown_and_json(rewrite: Callable[[], Any]) -> None:
    diff = compared(rewrite())
    assert_expected_file(f"{rewrite.__name__}.md", shown(diff_markdown(diff)) + "\n")
    assert_expected_file(f"{rewrite.__name__}.json", shown(json.dumps(diff.to_dict(), indent=2, ensure_ascii=False)) + "\n")


def test_a_fold() -> None:
    assert_expected_inline(
        shown(diff_text(compared(fold()))),
        """\
--- captured
+++ rewritten
changes: 1 added, 3 removed, 4 state; 4 → 2 calls
logical 4,736 → 1,536 B (-3,200), backing 4,736 → 1,536 B (-3,200)
state freed: logical 4,736 B, backing 4,736 B; added: logical 1,536 B, backing 1,536 B
@@ 3:1 fold_tokens: embedding, linear, tanh → lookup_default @@
-embedding = aten.embedding(embedding.weight, ids)  # float32[2, 3, 16]; module embedding; test_diff_forms.py:N
-linear = aten.linear(embedding, gates.weight, gates.bias)  # float32[2, 3, 64]; module gates; test_diff_forms.py:N
-tanh = aten.tanh(linear)  # float32[2, 3, 64]; test_diff_forms.py:N; its readers take lookup_default
+lookup_default = foldfx.lookup(foldfx_tables.ids.tanh, ids, 'embedding')  # float32[2, 3, 64]; test_diff_forms.py:N
@@ state: freed 4,736 B, added 1,536 B @@
-embedding.weight  # parameter, float32[6, 16]; 384 B
-gates.weight  # parameter, float32[64, 16]; 4,096 B
-gates.bias  # parameter, float32[64]; 256 B
+foldfx_tables.ids.tanh  # buffer, float32[6, 64]; 1,536 B""",
    )


def test_a_deletion() -> None:
    assert_expected_inline(
        shown(diff_text(compared(deletion()))),
        """\
--- captured
+++ rewritten
changes: 2 removed; 6 → 4 calls
logical 0 B, backing 0 B
@@ 2:0 neg, neg_1 → nothing @@
-neg = aten.neg(a)  # float32[2, 3]; test_diff_forms.py:N
-neg_1 = aten.neg(neg)  # float32[2, 3]; test_diff_forms.py:N; its readers take a""",
    )


def test_a_rewire() -> None:
    assert_expected_inline(
        shown(diff_text(compared(rewire()))),
        """\
--- captured
+++ rewritten
changes: 1 rewired; 6 → 6 calls
logical 0 B, backing 0 B
@@ rewired @@
-sin = aten.sin(b)  # float32[2, 3]; test_diff_forms.py:N
+sin = aten.sin(a)  # float32[2, 3]; test_diff_forms.py:N""",
    )


def test_many_values_into_one() -> None:
    assert_expected_inline(
        shown(diff_text(compared(many_to_one()))),
        """\
--- captured
+++ rewritten
changes: 1 added, 4 removed; 6 → 3 calls
logical 0 B, backing 0 B
@@ 4:1 fuse: neg, neg_1, mul, add → addcmul_default @@
-neg = aten.neg(a)  # float32[2, 3]; test_diff_forms.py:N
-neg_1 = aten.neg(neg)  # float32[2, 3]; test_diff_forms.py:N
-mul = aten.mul.Tensor(neg_1, b)  # float32[2, 3]; test_diff_forms.py:N
-add = aten.add.Tensor(mul, 1)  # float32[2, 3]; test_diff_forms.py:N; its readers take addcmul_default
+addcmul_default = aten.addcmul(a, a, b)  # float32[2, 3]; test_diff_forms.py:N""",
    )


def test_one_value_into_many() -> None:
    assert_expected_inline(
        shown(diff_text(compared(one_to_many()))),
        """\
--- captured
+++ rewritten
changes: 3 added, 1 removed; 6 → 8 calls
logical 0 B, backing 0 B
@@ 1:3 split: sin → sub_tensor, abs_default, cos_default @@
-sin = aten.sin(b)  # float32[2, 3]; test_diff_forms.py:N; its readers take cos_default
+sub_tensor = aten.sub.Tensor(b, 1.5)  # float32[2, 3]; test_diff_forms.py:N
+abs_default = aten.abs(sub_tensor)  # float32[2, 3]; test_diff_forms.py:N
+cos_default = aten.cos(abs_default)  # float32[2, 3]; test_diff_forms.py:N""",
    )


def test_names_cannot_break_lines_or_steer_a_terminal() -> None:
    program, other = rewire()
    for each in (program, other):
        node(each, "sin").meta["nn_module_stack"] = {"odd": ("a\n+b \x1b[31m `````", "Odd")}
    diff = compared((program, other))
    text, markdown = diff_text(diff), diff_markdown(diff)
    assert r"module a\n+b \x1b[31m `````" in text
    assert "\x1b" not in text + markdown
    assert "\n+b" not in text + markdown
    assert "\n``````diff\n" in markdown


def test_the_markdown_fits_a_comment_and_escapes_what_a_model_says() -> None:
    def sines(count: int) -> GraphModule:
        graph = Graph()
        x = graph.placeholder("x")
        for _ in range(count):
            x = graph.call_function(torch.sin, (x,))
        graph.output(x)
        return GraphModule(nn.Module(), graph)

    one = outline_of(sines(1), "a|b <script>```")
    text = diff_markdown(diff_graphs(one, sines(4000)))
    assert 60_000 < len(text.encode()) < 65_536
    assert r"a\|b &lt;script&gt;\`\`\`" in text
    assert "more lines; the text form (`foldfx diff A B`) has all of it." in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("```diff") == text.count("\n```\n")
    assert diff_markdown(diff_graphs(one, one)).endswith("Equal: nothing differs but names.")
