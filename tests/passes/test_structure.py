"""The structural hash tells graphs apart, and the check after every pass finds what a pass left wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

import foldfx
from foldfx.analysis.provenance import ORIGINS
from foldfx.errors import PassError
from foldfx.passes.structure import structural_hash, verify_structure

aten = torch.ops.aten
LITERALS = (0, 0.0, -0.0, False, 1, 1.0, True, float("nan"), float("inf"), None, "1", torch.float32, (1,), (1.0,), slice(1), ())


def binary(
    literal: Any = 1, target: Any = aten.mul.Tensor, swap: bool = False, prefix: str = "", shape: tuple[int, ...] = (3,)
) -> GraphModule:
    """f(x, y) = target(x·y, literal)."""
    graph = Graph()
    x, y = (graph.create_node("placeholder", name, name=prefix + name) for name in "xy")
    product = graph.create_node("call_function", aten.mul.Tensor, (y, x) if swap else (x, y), name=f"{prefix}product")
    result = graph.create_node("call_function", target, (product, literal), name=f"{prefix}result")
    graph.output((result,))
    for node in (x, y, product, result):
        node.meta["val"] = torch.empty(shape)
    return GraphModule(nn.Module(), graph)


class State(nn.Module):
    """One tensor of each kind."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.randn(3))
        self.register_buffer("buffer", torch.randn(3))
        self.register_buffer("cache", torch.randn(3), persistent=False)
        self.constant = torch.randn(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.parameter + self.buffer) * self.cache + self.constant


def reading(tensor: Tensor, name: str = "part") -> GraphModule:
    state, graph = nn.Module(), Graph()
    state.register_buffer(name, tensor)
    graph.output((graph.get_attr(name),))
    return GraphModule(state, graph)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(LITERALS, 2)], ids=lambda literal: f"{literal!r}")
def test_literals_are_typed(one: Any, other: Any) -> None:
    assert structural_hash(binary(one)) != structural_hash(binary(other))


@pytest.mark.parametrize("literal", LITERALS, ids=lambda literal: f"{literal!r}")
def test_a_literal_is_itself_and_names_of_values_do_not_count(literal: Any) -> None:
    assert structural_hash(binary(literal)) == structural_hash(binary(literal, prefix="renamed_"))


@pytest.mark.parametrize(
    "changed",
    [{"target": aten.add.Tensor}, {"swap": True}, {"shape": (4,)}, {"shape": (3, 1)}],
    ids=["operation", "edge", "size", "rank"],
)
def test_operations_edges_and_metadata_count(changed: dict[str, Any]) -> None:
    assert structural_hash(binary()) != structural_hash(binary(**changed))


def test_symbolic_sizes_count() -> None:
    program = foldfx.capture(Model(), (torch.zeros(2, 3, dtype=torch.int64),))
    same, changed = program.copy().module, program.copy().module
    assert structural_hash(same) == structural_hash(program.module)
    node = next(node for node in changed.graph.nodes if node.target == aten.relu.default)
    first, second, *_ = node.meta["val"].shape
    assert isinstance(first, torch.SymInt)
    for size in (first + 1, second, first * second):
        node.meta["val"] = node.meta["val"].new_empty((size, *node.meta["val"].shape[1:]))
        assert structural_hash(changed) != structural_hash(program.module), str(size)


@pytest.mark.parametrize("name", ["parameter", "buffer", "cache", "constant"])
def test_the_tensor_behind_a_name_counts(name: str) -> None:
    program = foldfx.capture(State(), (torch.randn(3),), tokens=[], dynamic=False)
    copy, changed = program.copy().module, program.copy().module
    assert structural_hash(copy) == structural_hash(program.module)
    read = next(str(node.target) for node in changed.graph.nodes if node.op == "get_attr" and name in str(node.target))
    equal = getattr(changed, read).detach().clone()
    setattr(changed, read, nn.Parameter(equal) if name == "parameter" else equal)
    assert structural_hash(changed) != structural_hash(program.module)


def test_the_name_of_state_and_the_place_in_its_storage_count() -> None:
    whole = torch.randn(6)
    assert structural_hash(reading(whole[:3])) == structural_hash(reading(whole[:3]))
    assert structural_hash(reading(whole[:3])) != structural_hash(reading(whole[:3], "other"))
    assert structural_hash(reading(whole[:3])) != structural_hash(reading(whole[3:]))
    assert structural_hash(reading(whole[:3])) != structural_hash(reading(whole[:3].clone()))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.relu(self.project(self.embedding(ids)))


@pytest.fixture(scope="module")
def captured() -> foldfx.Program:
    return foldfx.capture(Model(), (torch.randint(7, (2, 3)),), dynamic=False)


def node(module: GraphModule, name: str) -> Node:
    return next(each for each in module.graph.nodes if each.name == name)


def insert(module: GraphModule, value: Callable[[Any], Any] | None, marked: bool) -> None:
    """A ReLU of `linear` in front of its readers, its traced value made by `value`."""
    linear = node(module, "linear")
    with module.graph.inserting_after(linear):
        new = module.graph.call_function(aten.relu.default, (linear,))
    linear.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    if marked:
        new.meta[ORIGINS] = ("test", ("linear",))
    if value is not None:
        new.meta["val"] = value(linear.meta["val"])


@pytest.mark.parametrize("marked", [True, False], ids=["through the builder", "around the builder"])
def test_a_node_with_the_right_value_passes(captured: foldfx.Program, marked: bool) -> None:
    module = captured.copy().module
    insert(module, lambda linear: linear.clone(), marked)
    verify_structure(module)


@pytest.mark.parametrize("marked", [True, False], ids=["through the builder", "around the builder"])
def test_a_node_without_a_value_is_found(captured: foldfx.Program, marked: bool) -> None:
    module = captured.copy().module
    insert(module, None, marked)
    with pytest.raises(PassError, match="carries no traced value"):
        verify_structure(module)


WRONG_VALUES = [lambda x: x[0], lambda x: x.double(), lambda x: x.new_empty(2, 3, 4)]


@pytest.mark.parametrize("value", WRONG_VALUES, ids=["rank", "dtype", "size"])
@pytest.mark.parametrize("marked", [True, False], ids=["through the builder", "around the builder"])
def test_a_value_that_the_operation_does_not_yield_is_found(
    captured: foldfx.Program, value: Callable[[Any], Any], marked: bool
) -> None:
    module = captured.copy().module
    insert(module, value, marked)
    with pytest.raises(PassError, match=r"relu.* records .* its operation yields"):
        verify_structure(module)


def test_a_reader_of_a_changed_value_is_checked(captured: foldfx.Program) -> None:
    """The new node is consistent; the old one behind it still records what it had before."""
    module = captured.copy().module
    linear, relu = node(module, "linear"), node(module, "relu")
    with module.graph.inserting_before(relu):
        new = module.graph.call_function(aten.select.int, (linear, 0, 0))
    new.meta |= {"val": linear.meta["val"][0], ORIGINS: ("test", ("linear",))}
    relu.replace_input_with(linear, new)
    with pytest.raises(PassError, match="relu records"):
        verify_structure(module)


def test_missing_state_is_found(captured: foldfx.Program) -> None:
    module = captured.copy().module
    del module.get_submodule("project").weight
    with pytest.raises(PassError, match=r"project\.weight"):
        verify_structure(module)


def test_a_malformed_graph_is_found(captured: foldfx.Program) -> None:
    module = captured.copy().module
    node(module, "linear").append(node(module, "embedding"))
    with pytest.raises(PassError, match="malformed"):
        verify_structure(module)


def test_the_captured_graph_itself_passes(captured: foldfx.Program) -> None:
    verify_structure(captured.module)
