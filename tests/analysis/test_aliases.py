"""Which values and which state share memory: every claim against the addresses that the operations really return."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

import foldfx
from foldfx.analysis.aliases import Alias, Aliases, analyze_aliases, state_alias
from foldfx.analysis.program import Program

NO, MAY, MUST = Alias.NO, Alias.MAY, Alias.MUST
aten = torch.ops.aten
Build = Callable[[Graph, Node], Node]

LAYOUTS = {
    "contiguous": torch.arange(36.0).reshape(6, 6),
    "transposed": torch.arange(36.0).reshape(6, 6).t(),
    "double": torch.arange(36.0).double().reshape(6, 6),
    "strided": torch.arange(144.0).reshape(12, 12)[::2, ::2],
}


def call(target: Any, *args: Any, **kwargs: Any) -> Build:
    """A call of `target` on the input."""
    return lambda graph, x: graph.call_function(target, (x, *args), kwargs)


def item(target: Any, *args: Any) -> Build:
    """The second result of a call on the input."""
    return lambda graph, x: graph.call_function(operator.getitem, (graph.call_function(target, (x, *args)), 1))


CLAIMS: dict[str, tuple[Build, Alias]] = {
    "view": (call(aten.view.default, [6, 2, 3]), MUST),
    "permute": (call(aten.permute.default, [1, 0]), MUST),
    "transpose": (call(aten.transpose.int, 0, 1), MUST),
    "t": (call(aten.t.default), MUST),
    "select": (call(aten.select.int, 0, 1), MUST),
    "slice": (call(aten.slice.Tensor, 0, 1, 3), MUST),
    "unsqueeze": (call(aten.unsqueeze.default, 0), MUST),
    "squeeze": (call(aten.squeeze.default), MUST),
    "expand": (call(aten.expand.default, [2, 6, 6]), MUST),
    "diagonal": (call(aten.diagonal.default), MUST),
    "unfold": (call(aten.unfold.default, 0, 2, 1), MUST),
    "as_strided": (call(aten.as_strided.default, [2], [1]), MUST),
    "detach": (call(aten.detach.default), MUST),
    "alias": (call(aten.alias.default), MUST),
    "split": (item(aten.split.Tensor, 3), MUST),
    "unbind": (item(aten.unbind.int), MUST),
    "chunk": (item(aten.chunk.default, 2), MUST),
    "reshape": (call(aten.reshape.default, [36]), MAY),
    "flatten": (call(aten.flatten.using_ints), MAY),
    "contiguous": (call(aten.contiguous.default), MAY),
    "to": (call(aten.to.dtype, torch.float32), MAY),
    "clone": (call(aten.clone.default), NO),
    "add": (call(aten.add.Tensor, 0), NO),
    "_to_copy": (call(aten._to_copy.default, dtype=torch.float32), NO),
    "roll": (call(aten.roll.default, [0]), NO),
    "repeat": (call(aten.repeat.default, [1, 1]), NO),
    "softmax": (call(aten.softmax.int, 0), NO),
    "topk": (item(aten.topk.default, 2), NO),
}
UNSIGNED: dict[str, Build] = {
    "type_as": lambda graph, x: graph.call_function(aten.type_as.default, (x, x)),
    "einsum": lambda graph, x: graph.call_function(aten.einsum.default, ("ij->ji", [x])),
    "broadcast_tensors": lambda graph, x: graph.call_function(
        operator.getitem, (graph.call_function(aten.broadcast_tensors.default, ([x, x],)), 1)
    ),
    "meshgrid": lambda graph, x: graph.call_function(
        operator.getitem, (graph.call_function(aten.meshgrid.default, ([graph.call_function(aten.select.int, (x, 0, 0))],)), 0)
    ),
}


def program(build: Build, **state: Tensor) -> tuple[Program, Node, Node]:
    """(a program of one input, the input, the value built from it)."""
    graph = Graph()
    x = graph.placeholder("x")
    value = build(graph, x)
    graph.output((value,))
    root = nn.Module()
    for name, tensor in state.items():
        root.register_buffer(name, tensor)
    return Program(GraphModule(root, graph), {}), x, value


def share(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def observed(build: Build) -> set[bool]:
    """Whether the value shares memory with the input, for inputs of every layout the operation takes."""
    found = set()
    for layout in LAYOUTS.values():
        try:
            (result,) = program(build)[0].module(layout)
        except RuntimeError:
            continue
        found.add(share(layout, result))
    return found


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_what_the_operation_does(name: str) -> None:
    """MUST: always the input's memory; NO: never; MAY: it depends on the layout or dtype."""
    build, claim = CLAIMS[name]
    found, x, value = program(build)
    assert analyze_aliases(found).between(x, value) is claim
    assert observed(build) == {MUST: {True}, NO: {False}, MAY: {True, False}}[claim]


@pytest.mark.parametrize("name", UNSIGNED)
def test_an_operation_that_hands_its_operand_back_without_declaring_it(name: str) -> None:
    """Composite operations declare no alias in their schema, and return one."""
    found, x, value = program(UNSIGNED[name])
    assert True in observed(UNSIGNED[name])
    assert analyze_aliases(found).between(x, value) is not NO


def opaque(x: Tensor, y: Tensor) -> Tensor:
    return y


@torch.library.custom_op("foldfx_test_aliases::scale", mutates_args=())
def scale(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("foldfx_test_aliases::write", mutates_args=("x",))
def write(x: Tensor) -> Tensor:
    x.add_(1)
    return x.clone()


LIBRARY = torch.library.Library("foldfx_test_aliases", "FRAGMENT")
LIBRARY.define("back(Tensor x) -> Tensor", tags=(torch.Tag.maybe_aliasing_or_mutating,))
LIBRARY.impl("back", lambda x: x.view(x.shape), "CompositeExplicitAutograd")


UNKNOWN: dict[str, tuple[Build, Alias, bool]] = {
    "a Python function": (lambda graph, x: graph.call_function(opaque, (call(aten.clone.default)(graph, x), x)), MAY, True),
    "tagged as aliasing": (call(torch.ops.foldfx_test_aliases.back.default), MAY, True),
    "one that writes": (call(torch.ops.foldfx_test_aliases.write.default), MAY, True),
    "one of torch.library": (call(torch.ops.foldfx_test_aliases.scale.default), NO, False),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_operation_may_alias_and_write_all_it_reads(name: str) -> None:
    """An operation of torch.library promises not to."""
    build, claim, writes = UNKNOWN[name]
    found, x, value = program(build)
    aliases = analyze_aliases(found)
    assert aliases.between(x, value) is claim
    assert aliases.may_reach(x, [value]) is (claim is not NO)
    assert (value in aliases.writers) is writes


def test_views_of_views_are_as_sure_as_the_weakest_step() -> None:
    sure, x, value = program(lambda graph, x: call(aten.select.int, 0, 0)(graph, call(aten.t.default)(graph, x)))
    assert analyze_aliases(sure).between(x, value) is MUST
    unsure, x, value = program(lambda graph, x: call(aten.t.default)(graph, call(aten.reshape.default, [6, 6])(graph, x)))
    assert analyze_aliases(unsure).between(x, value) is MAY
    cut, x, value = program(lambda graph, x: call(aten.t.default)(graph, call(aten.clone.default)(graph, x)))
    assert analyze_aliases(cut).between(x, value) is NO


def addresses(tensor: Tensor) -> set[int]:
    """The address of every byte of the tensor's elements."""
    places = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = torch.arange(size) * stride
        places = places + steps.reshape([-1 if each == dim else 1 for each in range(tensor.dim())])
    starts = (tensor.data_ptr() + places * tensor.element_size()).flatten().tolist()
    return {start + byte for start in starts for byte in range(tensor.element_size())}


def random_view(base: Tensor) -> Tensor:
    """Blocks, steps, transpositions, reinterpretations and expansions of one allocation."""
    view = base[random.randrange(6) :][: random.randint(1, 6)]
    for _ in range(random.randint(0, 2)):
        view = random.choice((view.t(), view[:: random.choice((1, 2))], view[:, random.randrange(view.shape[1]) :]))
    return random.choice((view, view, view.to(torch.float32).clone(), view.view(torch.int32), view[:1].expand(3, -1)))


@pytest.mark.parametrize("batch", range(4))
def test_state_that_shares_elements_is_never_called_apart(batch: int) -> None:
    """NO only where no byte is common, MUST only where one is; dense views get an answer either way."""
    seen = set()
    for _ in range(300):
        base = torch.zeros(12, 8)
        one, other = random_view(base), random_view(base)
        common, claim = bool(addresses(one) & addresses(other)), state_alias(one, other)
        assert (claim is NO) <= (not common)
        assert (claim is MUST) <= common
        if one.is_contiguous() and other.is_contiguous():
            assert claim is (MUST if common else NO)
        seen.add((common, claim))
    assert seen == {(True, MUST), (True, MAY), (False, MAY), (False, NO)}


VIEWS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Alias]] = {
    "the same": (lambda w: (w, w), MUST),
    "its transpose": (lambda w: (w, w.t()), MUST),
    "overlapping rows": (lambda w: (w[:4], w[3:]), MUST),
    "disjoint rows": (lambda w: (w[:3], w[3:]), NO),
    "interleaved columns": (lambda w: (w[:, :2], w[:, 2:]), MAY),
    "no elements": (lambda w: (w[:0], w), NO),
    "an equal copy": (lambda w: (w, w.clone()), NO),
}


@pytest.mark.parametrize("name", VIEWS)
def test_state_read_through_two_names(name: str) -> None:
    """Reads of state alias by their elements; a view of a read stands on the read's allocation."""
    make, claim = VIEWS[name]
    one, other = make(torch.randn(6, 4))

    def build(graph: Graph, x: Node) -> Node:
        reads = graph.get_attr("one"), graph.get_attr("other")
        return graph.call_function(aten.t.default, (graph.call_function(opaque, reads),))

    found, x, view = program(build, one=one, other=other)
    first, second = view.all_input_nodes[0].all_input_nodes
    view.args = (first,)
    aliases: Aliases = analyze_aliases(found)
    assert (aliases.between(first, second), aliases.between(second, first)) == (claim, claim)
    assert (aliases.between(first, view), aliases.between(x, first), aliases.between(x, view)) == (MUST, NO, NO)


class Counter(nn.Module):
    """Writes one buffer, and returns a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("table", torch.randn(3, 4))
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        count = self.get_buffer("count")
        count.add_(1)
        return x + count, self.get_buffer("table").t()


def test_what_a_captured_program_writes_and_returns() -> None:
    captured = foldfx.capture(Counter(), (torch.randn(2, 3),), tokens=[], dynamic=False)
    aliases = analyze_aliases(captured)
    table = next(node for node in captured.graph.nodes if node.target == "table")
    count = next(node for node in captured.graph.nodes if node.target == "count")
    fresh, view = captured.graph.output_node().all_input_nodes
    assert [writer.all_input_nodes[0] for writer in aliases.writers] == [count]
    assert (aliases.may_reach(table, [fresh]), aliases.may_reach(table, [fresh, view])) == (False, True)
    assert not aliases.may_reach(count, [view])
