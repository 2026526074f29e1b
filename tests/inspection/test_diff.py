"""The structural diff: names do not count, everything else does, and the edits make one graph of the other."""

from __future__ import annotations

import copy
import json
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

import foldfx
from foldfx.analysis.fingerprint import Digests
from foldfx.analysis.storage import measure_program
from foldfx.inspection.diff import DIFF_SCHEMA, Diff, diff_graphs
from foldfx.inspection.diff_text import diff_text
from foldfx.inspection.edits import Added, Moved, NoteChanged, Relocated, Removed, Retyped, Rewired, StateChanged, apply
from foldfx.inspection.outline import Outline
from foldfx.inspection.outline_of import outline_of
from foldfx.lowering import PROVIDERS, lower

aten = torch.ops.aten
SCHEMA = Draft202012Validator(json.loads(DIFF_SCHEMA.read_text()))


def normal(outline: Outline) -> Any:
    """Everything that counts, without keys, names and who added what."""
    place = {value.key: number for number, value in enumerate(outline.values)}
    digests = Digests()
    values = [(value.call, [place.get(key, key) for key in value.operands], value.type, value.site) for value in outline.values]
    state = {name: (held, held.contents(digests)) for name, held in outline.state.items()}
    state = {
        name: (held.kind, held.type, held.bytes, held.allocation, held.shares, digest) for name, (held, digest) in state.items()
    }
    return values, state, dict(outline.signature), outline.metadata and dict(outline.metadata)


def assert_edits_lead(one: Any, other: Any) -> Diff:
    """Applying the edits to the one gives the other, and no edit says what is so already."""
    diff = diff_graphs(one, other)
    assert normal(apply(diff.edits, diff.before)) == normal(diff.after)
    assert diff.empty == (normal(diff.before) == normal(diff.after))
    SCHEMA.validate(json.loads(json.dumps(diff.to_dict(), allow_nan=False)))
    assert diff.empty == (diff_text(diff) == "")
    return diff


def kinds(diff: Diff) -> list[type]:
    return [type(edit) for edit in diff.edits]


def chain(build: Callable[[Graph, Node], Any], root: nn.Module | None = None) -> GraphModule:
    graph = Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return GraphModule(root or nn.Module(), graph)


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    return graph.call_function(target, args, kwargs)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gates, self.head = nn.Embedding(30, 64), nn.Linear(64, 192), nn.Linear(192, 5)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.gates(self.embedding(ids))).mean(1))


@pytest.fixture(scope="module")
def words() -> foldfx.Program:
    return foldfx.capture(Words(), (torch.randint(30, (2, 3)),))


def renamed(module: GraphModule) -> GraphModule:
    """The same graph with every name another one."""
    other = copy.deepcopy(module)
    names = [f"value{number}" for number in range(len(other.graph.nodes))]
    random.shuffle(names)
    for node, name in zip(other.graph.nodes, names, strict=True):
        node._rename(name)
    other.recompile()
    return other


def test_a_graph_differs_from_itself_in_nothing(words: foldfx.Program) -> None:
    assert assert_edits_lead(words, words).empty
    assert assert_edits_lead(words, words.copy()).empty
    assert assert_edits_lead(words.module, copy.deepcopy(words.module)).empty


def test_names_do_not_count(words: foldfx.Program) -> None:
    other = renamed(words.module)
    assert not {node.name for node in other.graph.nodes} & {node.name for node in words.graph.nodes}
    assert assert_edits_lead(words.module, other).empty


def test_captured_again_it_is_the_same_graph(words: foldfx.Program) -> None:
    """Sizes have other symbols, tensors other memory."""
    model = Words()
    model.load_state_dict(words.module.state_dict())
    assert assert_edits_lead(words, foldfx.capture(model, (torch.randint(30, (4, 7)),))).empty


def test_other_weights_are_a_change_of_contents(words: foldfx.Program) -> None:
    model = Words()
    model.load_state_dict(words.module.state_dict())
    with torch.no_grad():
        model.head.weight[0, 0] += 1
    (edit,) = assert_edits_lead(words, foldfx.capture(model, (torch.randint(30, (4, 7)),))).edits
    assert isinstance(edit, StateChanged)
    assert (edit.name, edit.contents) == ("head.weight", True)


def test_one_deletion_changes_one_line() -> None:
    def with_or_without(double: bool) -> Callable[[Graph, Node], Any]:
        def build(graph: Graph, x: Node) -> Any:
            y = call(graph, torch.relu, x)
            y = call(graph, torch.neg, y) if double else y
            return [call(graph, torch.exp, y), call(graph, torch.add, y, 1), *(call(graph, torch.add, y, i) for i in range(9))]

        return build

    diff = assert_edits_lead(chain(with_or_without(True)), chain(with_or_without(False)))
    (edit,) = diff.edits
    assert isinstance(edit, Removed)
    assert (edit.value.name, edit.instead) == ("neg", "torch.relu #1")
    assert [line for line in diff_text(diff).splitlines()[2:] if line[0] in "-+~"] == [
        "-neg = torch.neg(relu)  # its readers take relu"
    ]


def test_a_dead_value_is_one_line_among_its_twins() -> None:
    def build(count: int) -> Callable[[Graph, Node], Any]:
        return lambda graph, x: [call(graph, torch.relu, x) for _ in range(count)][:1]

    (edit,) = assert_edits_lead(chain(build(4)), chain(build(3))).edits
    assert isinstance(edit, Removed)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), (1, 2), ("a{0}", "a{1}"), ([1], (1,)), (torch.float32, torch.float64), (None, 0)],
)
def test_literals_are_typed(one: Any, other: Any) -> None:
    graphs = [chain(lambda graph, x, each=each: call(graph, torch.add, x, each)) for each in (one, other)]
    (edit,) = assert_edits_lead(*graphs).edits
    assert isinstance(edit, Rewired)
    assert assert_edits_lead(graphs[0], copy.deepcopy(graphs[0])).empty


def test_nan_equals_itself() -> None:
    graphs = [chain(lambda graph, x: call(graph, torch.add, x, float("nan"))) for _ in range(2)]
    assert assert_edits_lead(*graphs).empty


def test_exchanged_operands_are_rewired() -> None:
    graphs = [
        chain(
            lambda graph, x, turn=turn: call(graph, torch.sub, *[call(graph, torch.exp, x), call(graph, torch.sin, x)][::turn])
        )
        for turn in (1, -1)
    ]
    assert kinds(assert_edits_lead(*graphs)) == [Rewired]


def test_order_alone_is_a_move() -> None:
    def build(first: Any, second: Any) -> Callable[[Graph, Node], Any]:
        def build(graph: Graph, x: Node) -> Any:
            made = {target: call(graph, target, x) for target in (first, second)}
            return made[torch.exp], made[torch.sin]

        return build

    graphs = [chain(build(torch.exp, torch.sin)), chain(build(torch.sin, torch.exp))]
    assert kinds(assert_edits_lead(*graphs)) == [Moved]


def test_types_are_compared(words: foldfx.Program) -> None:
    other = words.copy()
    node = next(node for node in other.graph.nodes if node.name == "tanh")
    node.meta["val"] = node.meta["val"].double()
    (edit,) = assert_edits_lead(words, other).edits
    assert isinstance(edit, Retyped)
    assert (edit.before.name, edit.type) == ("tanh", "float64[s0, s1, 192]")


def test_lost_provenance_is_a_change(words: foldfx.Program) -> None:
    other = words.copy()
    node = next(node for node in other.graph.nodes if node.name == "tanh")
    del node.meta["stack_trace"]
    (edit,) = assert_edits_lead(words, other).edits
    assert isinstance(edit, Relocated)
    assert edit.before.source.startswith("test_diff.py:")
    assert edit.source == ""


def test_inputs_and_outputs_are_the_signature(words: foldfx.Program) -> None:
    class Two(Words):
        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return self.embedding(tokens), super().forward(tokens)

    other = foldfx.capture(Two(), (torch.randint(30, (2, 3)),))
    notes = {edit.label for edit in assert_edits_lead(words, other).edits if isinstance(edit, NoteChanged)}
    assert {"input ids", "input tokens", "inputs", "output 0", "output 1", "structure of outputs"} <= notes
    assert {"token input ids", "token input tokens"} <= notes


def test_a_fold_is_one_rewrite_with_its_bytes(words: foldfx.Program) -> None:
    rewritten, _, _ = foldfx.Pipeline().rewrite(words)
    diff = assert_edits_lead(words, rewritten)
    (group,) = diff.lineage
    assert (group.kind, group.by) == ("3:1", ("fold_tokens",))
    assert diff.state_freed.backing == 4 * (30 * 64 + 192 * 64 + 192)
    assert diff.state_added.backing == 4 * 30 * 192
    assert diff.before.storage == foldfx.analysis.measure(words.module)
    assert diff.after.storage == foldfx.analysis.measure(rewritten.module)
    lowered = rewritten.copy()
    lower(lowered.module, PROVIDERS)
    (group,) = assert_edits_lead(words, lowered).lineage
    assert (group.kind, group.by) == ("3:1", ("fold_tokens",))  # the embedding that reads the table is not the old one
    backwards = assert_edits_lead(rewritten, words)
    assert [each.kind for each in backwards.lineage] == ["1:3"]


def test_constants_of_the_trace_are_not_the_models_bytes() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shifts = [torch.ones(3)]

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shifts[0]

    program = foldfx.capture(Shifted().eval(), (torch.ones(2, 3),), tokens=())
    outline = outline_of(program, "shifted")
    assert [held.kind for held in outline.state.values()] == ["constant"]
    assert outline.storage == measure_program(program)


def test_mode_and_device_are_compared() -> None:
    one, training, elsewhere = (chain(lambda graph, x: call(graph, torch.exp, x)) for _ in range(3))
    training.train()
    one.eval()
    elsewhere.eval()
    (note,) = assert_edits_lead(one, training).edits
    assert note == NoteChanged("signature", "mode", "eval", "training")
    for module, device in ((one, "cpu"), (elsewhere, "meta")):
        module.graph.find_nodes(op="call_function", target=torch.exp)[0].meta["val"] = torch.empty(2, device=device)
    retyped, _ = assert_edits_lead(one, elsewhere).edits
    assert (retyped.before.type, retyped.type) == ("float32[2]", "float32[2] on meta")


def test_the_only_call_of_a_line_is_the_same_value() -> None:
    """The second sine of a chain that nothing reads, not the first, although it now makes the first one's call."""

    def build(both: bool) -> Callable[[Graph, Node], Any]:
        def build(graph: Graph, x: Node) -> Node:
            last = x
            for line in (1, 2) if both else (2,):
                last = call(graph, torch.sin, last)
                last.meta["stack_trace"] = f'File "model.py", line {line}, in forward'
            return x

        return build

    (edit,) = assert_edits_lead(chain(build(True)), chain(build(False))).edits
    assert isinstance(edit, Removed)
    assert edit.value.source == "model.py:1"


def test_a_tied_copy_that_stays_frees_nothing() -> None:
    both, one = (GraphModule(nn.Module(), Graph()) for _ in range(2))
    weight = nn.Parameter(torch.zeros(8, 4))
    for module, names in ((both, ("head", "table")), (one, ("head",))):
        for name in names:
            module.register_parameter(name, weight)
        module.graph.output(module.graph.get_attr("head"))
    diff = assert_edits_lead(both, one)
    assert (diff.state_freed.logical, diff.state_freed.backing) == (128, 0)
    assert sorted(type(edit).__name__ for edit in diff.edits) == ["StateChanged", "StateChanged"]


def test_exported_programs_and_files_are_compared(words: foldfx.Program, tmp_path: Path) -> None:
    exported = torch.export.export(words.module, (torch.randint(30, (2, 3)),))
    torch.export.save(exported, tmp_path / "model.pt2")
    assert assert_edits_lead(exported, tmp_path / "model.pt2").empty
    diff = assert_edits_lead(exported, str(tmp_path / "model.pt2"))
    assert diff.after.label == f"{tmp_path.name}/model.pt2"
    (tmp_path / "model.pt2").rename(tmp_path / "program.pt2")
    assert assert_edits_lead(exported, tmp_path).empty
    mixed = diff_graphs(words, exported)
    assert not mixed.compares_metadata
    assert diff_text(mixed).endswith("metadata: not compared, after is a bare graph")


def test_graphs_within_operations_are_state() -> None:
    class Either(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.shift = shift

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin() + self.shift, torch.cos, (x,))  # type: ignore[no-any-return]

    one, again, other = (torch.export.export(Either(shift), (torch.ones(3),)) for shift in (1.0, 1.0, 2.0))
    assert assert_edits_lead(one, again).empty
    (edit,) = assert_edits_lead(one, other).edits
    assert isinstance(edit, StateChanged)
    assert (edit.name, edit.before and edit.before.kind) == ("true_graph_0", "graph")


def test_a_layer_taken_out_is_one_group() -> None:
    class Layers(nn.Module):
        def __init__(self, *present: bool) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) if each else nn.Identity() for each in present])
            self.eval()

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x)) if isinstance(layer, nn.Linear) else x
            return x

    full, short = Layers(True, True, True), Layers(True, False, True)
    short.load_state_dict(full.state_dict(), strict=False)
    one, other = (foldfx.capture(model, (torch.randn(2, 4),), tokens=()) for model in (full, short))
    diff = assert_edits_lead(one, other)
    assert [each.kind for each in diff.lineage] == ["2:0"]
    assert diff.counts == dict.fromkeys(diff.counts, 0) | {"removed": 2, "state": 2}


def test_an_outline_survives_json(words: foldfx.Program) -> None:
    outline = outline_of(words, "words")
    again = Outline.from_dict(json.loads(json.dumps(outline.to_dict(Digests()))), "words.json")
    assert assert_edits_lead(words, again).empty
    assert normal(again) == normal(outline)


UNARY = (torch.relu, torch.neg, torch.exp, torch.sin)
BINARY = (torch.add, torch.sub, operator.mul)


@st.composite
def graphs(draw: st.DrawFn) -> GraphModule:
    """Few operations on few values, so that there are many twins; some with types and sites."""
    module = GraphModule(nn.Module(), Graph())
    graph = module.graph
    values = [graph.placeholder(name) for name in draw(st.sampled_from((["x"], ["x", "y"], ["y", "x"])))]
    for name in draw(st.sets(st.sampled_from(("w", "v")))):
        module.register_buffer(name, torch.full((draw(st.integers(1, 2)),), float(draw(st.integers(0, 1)))))
        values.append(graph.get_attr(name))
    for _ in range(draw(st.integers(0, 12))):
        pick = st.sampled_from(values)
        if draw(st.booleans()):
            node = call(graph, draw(st.sampled_from(UNARY)), draw(pick))
        else:
            node = call(graph, draw(st.sampled_from(BINARY)), draw(pick), draw(st.one_of(pick, st.integers(0, 1))))
        node.meta["val"] = torch.empty(draw(st.integers(1, 2)), device="meta")
        if draw(st.booleans()):
            node.meta["stack_trace"] = f'File "model.py", line {draw(st.integers(1, 3))}, in forward'
        values.append(node)
    graph.output(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    module.recompile()
    return module


@given(one=graphs(), other=graphs())
@settings(max_examples=150)
def test_the_edits_make_one_graph_of_any_other(one: GraphModule, other: GraphModule) -> None:
    diff = assert_edits_lead(one, other)
    removed = {edit.value.key for edit in diff.edits if isinstance(edit, Removed)}
    added = {edit.value.key for edit in diff.edits if isinstance(edit, Added)}
    assert sorted(key for group in diff.lineage for key in group.before) == sorted(removed)
    assert sorted(key for group in diff.lineage for key in group.after) == sorted(added)


@given(one=graphs())
@settings(max_examples=100)
def test_any_graph_renamed_is_the_same(one: GraphModule) -> None:
    assert assert_edits_lead(one, renamed(one)).empty


@given(one=graphs(), data=st.data())
@settings(max_examples=100)
def test_erasing_a_value_is_one_edit(one: GraphModule, data: st.DataObject) -> None:
    """Where its readers take one of its operands instead, and every value has a line of its own."""
    calls = [node for node in one.graph.nodes if node.op == "call_function"]
    if not calls:
        return
    for line, node in enumerate(calls):
        node.meta["stack_trace"] = f'File "model.py", line {line}, in forward'
        node.meta["val"] = torch.empty(1, device="meta")
    other = copy.deepcopy(one)
    gone = data.draw(st.sampled_from([node for node in other.graph.nodes if node.op == "call_function"]))
    gone.replace_all_uses_with(gone.args[0])
    other.graph.erase_node(gone)
    edits = [edit for edit in assert_edits_lead(one, other).edits if not isinstance(edit, NoteChanged)]
    assert [(type(edit), edit.value.name) for edit in edits] == [(Removed, gone.name)]
