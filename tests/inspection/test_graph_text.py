"""Programs as text: what the text computes, bit for bit, and that it is always the same text."""

from __future__ import annotations

import copy
import math
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

import foldfx
from foldfx._torch import tree_flatten
from foldfx.inspection.graph_text import graph_text, state_tensors


def from_text(module: GraphModule, text: str | None = None) -> nn.Module:
    """The class made of the text, on copies of the module's tensors; what was one tensor is one again."""
    scope: dict[str, Any] = {}
    exec(compile(text or graph_text(module, "Copy"), "<text>", "exec"), scope)
    made = scope["Copy"](copy.deepcopy({name: tensor.data for name, tensor in state_tensors(module).items()}))
    assert isinstance(made, nn.Module)
    return made


def assert_same(one: Any, other: Any) -> None:
    leaves, spec = tree_flatten(one)
    others, other_spec = tree_flatten(other)
    assert spec == other_spec
    for leaf, found in zip(leaves, others, strict=True):
        if isinstance(leaf, Tensor):
            assert (leaf.dtype, leaf.shape, leaf.stride()) == (found.dtype, found.shape, found.stride())
            torch.testing.assert_close(found, leaf, rtol=0, atol=0, equal_nan=True)
        else:
            assert type(leaf) is type(found)
            assert repr(leaf) == repr(found)


def assert_text_computes(module: GraphModule, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> str:
    """Outputs, written inputs and written buffers of the module and of its text are the same on all calls, in turn."""
    text = graph_text(module, "Copy")
    made = from_text(module, text)
    for args, kwargs in calls:
        theirs, ours = (copy.deepcopy((args, kwargs)) for _ in range(2))
        assert_same(module(*theirs[0], **theirs[1]), made(*tree_flatten(ours)[0]))
        assert_same(theirs, ours)
        assert_same(dict(module.named_buffers()), dict(made.named_buffers()))
    return text


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.register_buffer("calls", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("scale", torch.tensor([math.inf, 1.0, -0.0, 2.0]), persistent=False)
        self.eval()

    def forward(self, ids: Tensor, seen: Tensor, *, math: Tensor, flag: Any = None) -> dict[str, Any]:
        self.calls.add_(ids.shape[1])
        seen.add_(1)
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        batch, length = ids.shape
        turned = hidden.view(batch * length, 2, 2).permute(1, 0, 2).reshape(2, batch, length, 2)
        mask = torch.full((length, length), float("-inf")).triu(1)
        best, where = turned.topk(2)
        return {
            "tree": [(turned * math, None), {"scaled": hidden * self.scale, 3: best}],
            "mask": mask,
            "ids": self.head(hidden).argmax(-1),
            "where": where.int(),
            "length": length * 2 + 1,
            "low": hidden.to(torch.bfloat16, memory_format=torch.contiguous_format),
            "constants": (3.5, True, "text", None),
            "positions": torch.arange(length, device=ids.device),
            "nan": torch.where(hidden > 0, hidden, float("nan")),
        }


def call(batch: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randint(7, (batch, length)), torch.randn(length)), {"math": torch.tensor(2.5)}


def captured(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> GraphModule:
    return foldfx.capture(model, args, kwargs).module


@pytest.fixture(scope="module")
def everything() -> GraphModule:
    args, kwargs = call(3, 5)
    return captured(Everything(), args, kwargs)


def test_text_computes_what_the_program_does(everything: GraphModule) -> None:
    text = assert_text_computes(everything, [call(3, 5), call(1, 2), call(4, 9)])
    assert "float('-inf')" in text
    assert "# int64[s" in text
    assert re.search(rf"# module layers.0, \S*{Path(__file__).name}:\d", text)
    assert text.endswith("\n")
    assert all(name not in text for name in ("0x", "_guards_fn"))


def test_state_keeps_names_kinds_and_ties(everything: GraphModule) -> None:
    made = from_text(everything)
    assert not made.training
    for kind in ("named_parameters", "named_buffers"):
        theirs, ours = (dict(getattr(each, kind)(remove_duplicate=False)) for each in (everything, made))
        assert {name: each.requires_grad for name, each in theirs.items()} == {
            n: each.requires_grad for n, each in ours.items()
        }
    assert made.state_dict().keys() == everything.state_dict().keys()
    assert made.get_parameter("head.weight") is made.get_parameter("embedding.weight")
    assert made.get_parameter("layers.0.weight") is not made.get_parameter("embedding.weight")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.5", "3.25"),
        ("copy_.default(calls, ", "copy_.default(calls.clone(), "),
        ("float('nan')", "0.0"),
        ("[1, 0, 2]", "[0, 1, 2]"),
    ],
)
def test_a_changed_text_computes_something_else(everything: GraphModule, old: str, new: str) -> None:
    """The comparison above sees it."""
    text = graph_text(everything, "Copy")
    assert text.count(old) == 1
    made = from_text(everything, text.replace(old, new))
    args, kwargs = call(2, 3)
    one = everything(*copy.deepcopy(args), **kwargs), dict(everything.named_buffers())
    other = made(*copy.deepcopy(args), *kwargs.values()), dict(made.named_buffers())
    with pytest.raises(AssertionError):
        assert_same(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.project = nn.Embedding(5, 6), nn.Linear(6, 3)
            self.to(dtype).eval()

        def forward(self, ids: Tensor) -> Tensor:
            return torch.softmax(self.project(self.embedding(ids)), -1)

    ids = torch.randint(5, (2, 3))
    assert_text_computes(captured(Model(), (ids,)), [((ids,), {}), ((ids[:1],), {})])


def test_equal_graphs_give_equal_text(everything: GraphModule) -> None:
    args, kwargs = call(3, 5)
    again = captured(Everything(), args, kwargs)
    assert graph_text(again, "Copy") == graph_text(everything, "Copy")
    (added,) = [node for node in again.graph.nodes if node.target is operator.add]
    added.args = (added.args[0], 2)
    assert graph_text(again, "Copy") != graph_text(everything, "Copy")


def test_a_folded_program_is_written_before_and_after() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.up, self.down = nn.Embedding(9, 16), nn.Linear(16, 64), nn.Linear(64, 4)
            self.eval()

        def forward(self, ids: Tensor) -> Tensor:
            return self.down(torch.relu(self.up(self.embedding(ids)))).cumsum(1)

    ids = torch.randint(9, (2, 5))
    result = foldfx.compile(Model(), [foldfx.Example((ids,))])
    assert result.accepted
    text = assert_text_computes(result.module, [((ids,), {}), ((torch.randint(9, (4, 3)),), {})])
    assert "up.weight" not in text


def test_a_foldfx_operation_brings_its_import() -> None:
    table, ids = torch.randn(5, 3), torch.tensor([[0, 4]])
    graph = Graph()
    node = graph.call_function(
        torch.ops.foldfx.lookup.default, (graph.get_attr("table"), graph.placeholder("ids"), "embedding")
    )
    graph.output(node)
    module = GraphModule({"table": table}, graph)
    text = graph_text(module, "Copy")
    assert "import foldfx.runtime\n" in text
    assert from_text(module, text)(ids).equal(table[ids])
    assert "import foldfx.runtime" not in graph_text(one_call(torch.neg), "Copy")


class Pair(NamedTuple):
    first: Any
    second: Any


def test_other_containers_are_tuples_of_their_leaves() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Pair:
            return Pair(x + 1, [x * 2])

    x = torch.randn(3)
    module = foldfx.capture(Model().eval(), (x,), tokens=()).module
    first, (second,) = from_text(module)(x)
    assert first.equal(x + 1)
    assert second.equal(x * 2)


def one_call(target: Any, *args: Any, **kwargs: Any) -> GraphModule:
    """A graph that calls one function on its input `x`, and more arguments."""
    graph = Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"), *args), kwargs))
    return GraphModule(nn.Module(), graph)


@pytest.mark.parametrize(
    ("target", "args", "expression"),
    [
        (operator.floordiv, (2,), "x // 2"),
        (operator.getitem, ((slice(1, None), ...),), "x[(slice(1, None, None), ...)]"),
        (max, (3,), "max(x, 3)"),
        (math.ceil, (), "math.ceil(x)"),
        (operator.pow, (-1,), "operator.pow(x, -1)"),
        (torch.sym_max, (2,), "torch.sym_max(x, 2)"),
        (torch.ops.aten.add.Tensor, (complex(1, math.inf),), "torch.ops.aten.add.Tensor(x, complex(1.0, float('inf')))"),
    ],
)
def test_calls_read_like_python(target: Any, args: tuple[Any, ...], expression: str) -> None:
    text = graph_text(one_call(target, *args), "Copy")
    assert f" = {expression}\n" in text
    assert {name for name in ("math", "operator") if f"import {name}\n" in text} == {
        name for name in ("math", "operator") if f"{name}." in expression
    }


def test_names_hide_nothing_the_text_uses() -> None:
    graph = Graph()
    inputs = [graph.placeholder(name) for name in ("math", "torch", "Copy", "hold")]
    graph.output([graph.call_function(math.floor, (each,)) for each in inputs])
    made = from_text(GraphModule(nn.Module(), graph))
    assert made(1.5, 2.5, 3.5, 4.5) == [1, 2, 3, 4]


def home_made(x: Tensor) -> Tensor:
    return x


def test_a_python_function_is_refused() -> None:
    with pytest.raises(ValueError, match=r"node home_made .* calls the function 'home_made', which text cannot name\. Capture"):
        graph_text(one_call(home_made), "Copy")


def test_a_constant_without_a_literal_is_refused() -> None:
    module = one_call(torch.ops.aten.add.Tensor, 1)
    (node,) = [node for node in module.graph.nodes if node.op == "call_function"]
    assert "return add_tensor" in graph_text(module, "Copy")
    node.args = (node.args[0], torch.Generator())
    with pytest.raises(ValueError, match=r"node add_tensor .* carries a Generator, which has no literal"):
        graph_text(module, "Copy")


def test_nested_graphs_are_refused() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    x = torch.randn(3)
    exported = torch.export.export(Model().eval(), (x,)).module()
    assert isinstance(exported, GraphModule)
    with pytest.raises(ValueError, match=r"node true_graph_0 reads true_graph_0, a nested graph, which text cannot hold"):
        graph_text(exported, "Copy")


def test_other_submodules_than_the_guards_are_refused() -> None:
    graph = Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    with pytest.raises(ValueError, match=r"node inner .* calls submodule inner"):
        graph_text(GraphModule({"inner": nn.ReLU()}, graph), "Copy")


@pytest.mark.parametrize("name", ["", "a b", "class", "dict", "torch", "hold"])
def test_a_class_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name the class"):
        graph_text(one_call(torch.neg), name)
