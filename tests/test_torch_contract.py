"""What `_torch` says of torch's private names holds for the torch that is installed."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from foldfx import _torch
from foldfx.errors import CallError

aten = torch.ops.aten


class Model(nn.Module):
    def forward(self, ids: Tensor, more: dict[str, Tensor]) -> dict[str, object]:
        return {"sum": ids + more["other"], "pair": (ids * 2, 3)}


def exported(dynamic: bool = True) -> GraphModule:
    args = torch.zeros(3, 4), {"other": torch.ones(3, 4)}
    shapes = ({0: torch.export.Dim.AUTO}, {"other": {0: torch.export.Dim.AUTO}}) if dynamic else None
    module = torch.export.export(Model(), args, dynamic_shapes=shapes).module()
    assert isinstance(module, GraphModule)
    return module


def test_trees() -> None:
    tree = {"a": (1, [2.0]), "b": None}
    leaves, structure = _torch.tree_flatten(tree)
    assert [leaf for leaf in leaves if leaf is not None] == [1, 2.0]
    assert structure == _torch.tree_flatten({"a": (5, [6]), "b": None})[1]
    assert structure != _torch.tree_flatten({"a": [5, [6]], "b": None})[1]
    assert _torch.tree_map(lambda leaf: leaf if leaf is None else leaf + 1, tree) == {"a": (2, [3.0]), "b": None}


def test_leaf_paths_are_in_the_order_of_the_leaves() -> None:
    tree = {"b": (10, [20]), "a": 30}
    leaves, _ = _torch.tree_flatten(tree)
    assert dict(zip(_torch.leaf_paths(tree), leaves, strict=True)) == {"['b'][0]": 10, "['b'][1][0]": 20, "['a']": 30}
    assert _torch.leaf_paths(1) == ["<root>"]


def test_sizes() -> None:
    value = next(node for node in exported().graph.nodes if node.op == "placeholder").meta["val"]
    symbolic, static = value.shape
    assert isinstance(symbolic, torch.SymInt)
    assert _torch.size_expression(symbolic).is_Symbol
    assert _torch.size_expression(2 * symbolic + 1) == 2 * _torch.size_expression(symbolic) + 1
    assert _torch.size_expression(static) == _torch.size_expression(4) == sympy.Integer(4)
    assert _torch.static_size(symbolic) is None
    assert _torch.static_size(static) == 4
    assert _torch.static_size(symbolic - symbolic) == 0


def test_the_text_of_sizes_is_that_of_str_and_is_derived_once() -> None:
    symbolic = next(node for node in exported().graph.nodes if node.op == "placeholder").meta["val"].shape[0]
    known: dict[object, str] = {}
    sizes = (symbolic, 2 * symbolic, symbolic - symbolic, 4, symbolic)
    assert _torch.size_texts(sizes, known) == tuple(map(str, sizes))
    assert len(known) == 4
    assert _torch.size_texts((symbolic,), dict.fromkeys(known, "kept")) == ("kept",)


def test_sizes_that_depend_on_data() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0] + 1

    graph = torch.export.export(Masked(), (torch.randn(4),), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}}).graph
    total = next(node for node in graph.nodes if node.target is aten.add.Tensor).meta["val"]
    given = next(node for node in graph.nodes if node.op == "placeholder").meta["val"]
    assert _torch.is_data_dependent(total.shape[0])
    assert not _torch.is_data_dependent(given.shape[0])
    assert not _torch.is_data_dependent(4)


def test_fake_mode_of() -> None:
    mode = FakeTensorMode()
    with mode:
        fake = torch.empty(2)
    assert _torch.fake_mode_of(fake) is mode
    assert _torch.is_fake(fake)
    assert not _torch.is_fake(torch.empty(2))
    with pytest.raises(AttributeError):
        _torch.fake_mode_of(torch.empty(2))


def test_computing_as_traced_fixes_no_size_and_knows_symbols() -> None:
    value = next(node for node in exported().graph.nodes if node.op == "placeholder").meta["val"]
    with _torch.as_traced(_torch.fake_mode_of(value)):
        assert bool(value.shape[0] == 3)
        padded = aten.pad.default(value, [0, 0, -1, 1])
    assert _torch.static_size(value.shape[0]) is None
    assert _torch.size_expression(padded.shape[0]) == _torch.size_expression(value.shape[0])
    with _torch.as_traced(FakeTensorMode()):
        assert torch.empty(2).shape == (2,)


def test_graph_module_makes_buffers_persistent_and_we_undo_it() -> None:
    root, graph = nn.Module(), Graph()
    root.register_buffer("cache", torch.ones(2), persistent=False)
    graph.output(graph.get_attr("cache"))
    module = GraphModule(root, graph)
    assert "cache" in module.state_dict()
    _torch.mark_non_persistent(module, "cache")
    assert "cache" not in module.state_dict()
    assert torch.equal(module(), torch.ones(2))


@pytest.fixture
def no_hooks() -> Iterator[None]:
    assert _torch.global_hooks() == []
    yield
    assert _torch.global_hooks() == []


@pytest.mark.usefixtures("no_hooks")
@pytest.mark.parametrize(
    ("register", "table"),
    [
        ("register_module_forward_hook", "_global_forward_hooks"),
        ("register_module_forward_pre_hook", "_global_forward_pre_hooks"),
        ("register_module_full_backward_hook", "_global_backward_hooks"),
        ("register_module_full_backward_pre_hook", "_global_backward_pre_hooks"),
    ],
)
def test_global_hooks(register: str, table: str) -> None:
    handle = getattr(torch.nn.modules.module, register)(lambda *_: None)
    try:
        assert _torch.global_hooks() == [table]
    finally:
        handle.remove()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_tensor_hooks(register: str) -> None:
    tensor = torch.zeros(2, requires_grad=True)
    assert not _torch.tensor_hooks(tensor)
    handle = getattr(tensor, register)(lambda _: None)
    assert _torch.tensor_hooks(tensor)
    handle.remove()
    assert not _torch.tensor_hooks(tensor)


def test_storage_key() -> None:
    whole = torch.zeros(6)
    views = [whole, whole[3:], whole.view(2, 3).t(), whole.detach(), nn.Parameter(whole)]
    assert len({_torch.storage_key(view) for view in views}) == 1
    assert _torch.storage_key(whole) != _torch.storage_key(whole.clone())


def test_inputs_and_outputs_of_a_captured_graph() -> None:
    module = exported()
    ids, other = torch.ones(2, 4), torch.full((2, 4), 5.0)
    leaves = _torch.flatten_inputs(module, (ids, {"other": other}), {})
    assert len(leaves) == len([node for node in module.graph.nodes if node.op == "placeholder"])
    assert leaves[0] is ids
    assert leaves[1] is other
    for args, kwargs in (((ids,), {}), ((ids, {"another": other}), {}), ((ids, {"other": other}), {"x": 1})):
        with pytest.raises(ValueError, match="was captured with"):
            _torch.flatten_inputs(module, args, kwargs)


CAPTURED = ([torch.ones(2)], {"a": 1, "b": (2, [3])})
CALLS: dict[str, tuple[Any, bool]] = {
    "as captured": (([4], {"a": 5, "b": (6, [7])}), True),
    "keys in another order": (([4], {"b": (6, [7]), "a": 5}), True),
    "an argument more": (([4, 5], {"a": 5, "b": (6, [7])}), False),
    "a key more": (([4], {"a": 5, "b": (6, [7]), "c": 8}), False),
    "a key less": (([4], {"b": (6, [7])}), False),
    "another key": (([4], {"a": 5, "c": (6, [7])}), False),
    "an element more": (([4], {"a": 5, "b": (6, [7, 8])}), False),
    "an element less": (([4], {"a": 5, "b": (6, [])}), False),
    "a list for a tuple": (([4], {"a": 5, "b": [6, [7]]}), False),
    "a list for a number": (([[4]], {"a": 5, "b": (6, [7])}), False),
    "a dict of another class": (([4], OrderedDict(a=5, b=(6, [7]))), False),
}


@pytest.mark.parametrize("case", CALLS)
def test_leaves_of_calls_of_one_structure(case: str) -> None:
    spec = _torch.tree_flatten((tuple(CAPTURED[0]), CAPTURED[1]))[1]
    call, taken = CALLS[case]
    if taken:
        assert _torch.exact_leaves(call, spec) == [4, 5, 6, 7]
        return
    with pytest.raises(CallError, match=r"the call has structure .*but this program was captured with"):
        _torch.exact_leaves(call, spec)
    args, kwargs = call
    assert not _torch._has_structure((tuple(args), kwargs), spec)


def test_an_exported_graph_takes_exact_calls() -> None:
    """Torch's own code drops what it was not captured with; copies and traces keep working."""
    module = exported()
    ids, other = torch.ones(2, 4), torch.ones(2, 4)
    more = {"other": other, "another": other}
    graph = _torch.copy_graph(module.graph)
    assert torch.equal(GraphModule(module, graph)(ids, more)["sum"], ids + other)
    _torch.take_exact_calls(graph)
    assert isinstance(graph._codegen, type(_torch.ExactCalls(graph._codegen.pytree_info)))  # type: ignore[attr-defined]
    for exact in (GraphModule(module, graph), copy.deepcopy(GraphModule(module, _torch.copy_graph(graph)))):
        assert torch.equal(exact(ids, {"other": other})["sum"], ids + other)
        with pytest.raises(CallError):
            exact(ids, more)
        assert torch.equal(torch.fx.symbolic_trace(exact)(ids, {"other": other})["sum"], ids + other)


def test_call_structure() -> None:
    inputs, outputs = _torch.call_structure(exported()) or ("", "")
    assert _torch._on_one_line(_torch.tree_flatten((1, [2]))[1]) == "TreeSpec(tuple, None, [*, TreeSpec(list, None, [*])])"
    assert (
        inputs == "TreeSpec(tuple, None, [TreeSpec(tuple, None, [*, TreeSpec(dict, ['other'], [*])]), TreeSpec(dict, [], [])])"
    )
    assert "'sum'" in outputs
    assert "\n" not in inputs + outputs
    graph = Graph()
    graph.output(graph.placeholder("x"))
    assert _torch.call_structure(GraphModule(torch.nn.Module(), graph)) is None


def node(target: object, *args: object, **kwargs: object) -> Node:
    graph = Graph()
    return graph.call_function(target, args, kwargs)  # type: ignore[arg-type]


def test_schema_arguments() -> None:
    bound = _torch.schema_arguments(node(aten.layer_norm.default, "x", [4], eps=1e-3))
    assert bound == {"input": "x", "normalized_shape": [4], "weight": None, "bias": None, "eps": 1e-3, "cudnn_enable": True}
    assert math.isclose(_torch.schema_arguments(node(aten.layer_norm.default, "x", [4]))["eps"], 1e-5)
    added = _torch.schema_arguments(node(aten.add.Tensor, "x", "y", alpha=2))
    assert added == {"self": "x", "other": "y", "alpha": 2}
    with pytest.raises(TypeError, match="does not call an ATen overload"):
        _torch.schema_arguments(node(max, 1, 2))


def test_as_fake() -> None:
    mode, real = FakeTensorMode(), torch.ones(4, 3, dtype=torch.float16).t()
    fake = _torch.as_fake(mode, real)
    assert _torch.fake_mode_of(fake) is mode
    assert (fake.dtype, fake.stride()) == (real.dtype, real.stride())
    assert list(map(_torch.static_size, fake.shape)) == [3, 4]


def test_copy_graph() -> None:
    module = exported()
    copied = _torch.copy_graph(module.graph)
    assert [node.format_node() for node in copied.nodes] == [node.format_node() for node in module.graph.nodes]
    assert not set(copied.nodes) & set(module.graph.nodes)
    node = next(iter(copied.nodes))
    node.meta["mine"] = True
    assert "mine" not in next(iter(module.graph.nodes)).meta
    ids, other = torch.ones(2, 4), torch.full((2, 4), 5.0)
    expected, found = module(ids, {"other": other}), GraphModule(module, copied)(ids, {"other": other})
    assert found.keys() == expected.keys()
    assert torch.equal(found["sum"], expected["sum"])
    before = module.code
    copied.erase_node(copied.output_node())
    module.recompile()
    assert module.code == before


def test_overloads_and_what_they_write() -> None:
    assert _torch.is_overload(aten.add.Tensor)
    assert not _torch.is_overload(aten.add)
    assert not _torch.is_overload(max)
    assert not _torch.is_mutable(aten.add.Tensor)
    assert _torch.is_mutable(aten.add_.Tensor)
    assert _torch.is_mutable(aten.add.out)
    assert _torch.is_mutable(max)
    assert _torch.is_random(aten.rand_like.default)
    assert _torch.is_random(aten.bernoulli.default)
    assert not _torch.is_random(aten.relu.default)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_module_hooks(register: str) -> None:
    module = torch.nn.Linear(2, 2)
    assert _torch.module_hooks(module) == []
    handle = getattr(module, register)(lambda *args: None)
    assert _torch.module_hooks(module) != []
    handle.remove()
    assert _torch.module_hooks(module) == []


def test_within_a_transform() -> None:
    seen = []

    def record(x: Tensor) -> Tensor:
        seen.append(_torch.within_transform())
        return x.sum()

    x = torch.ones(3)
    torch.func.grad(record)(x)
    torch.func.jvp(record, (x,), (x,))
    record(x.requires_grad_()).backward()
    assert seen == [True, True, False]


def test_every_hook_table_of_a_module_is_one_of_calls_or_of_state() -> None:
    """And what holds the options of a hook of a call holds nothing else."""
    tables = {name for name in vars(torch.nn.Linear(2, 2)) if name.endswith("_hooks")}
    assert set(_torch.CALL_HOOK_TABLES) == {name for name in tables if "state_dict" not in name}


@pytest.mark.parametrize("register", ["register_state_dict_post_hook", "register_load_state_dict_post_hook"])
def test_hooks_of_state_are_none_of_a_call(register: str) -> None:
    module = torch.nn.Linear(2, 2)
    getattr(module, register)(lambda *args: None)
    assert _torch.module_hooks(module) == []


def test_every_function_of_the_door_is_tested_here() -> None:
    """A name added to `_torch` needs its contract in this file."""
    functions = [value for value in vars(_torch).values() if getattr(value, "__module__", "") == _torch.__name__]
    source = Path(__file__).read_text()
    assert [each.__name__ for each in functions if f"_torch.{each.__name__}(" not in source] == []


def test_operations_are_foreseen_on_data_and_in_other_contexts_but_not_where_they_need_not_be() -> None:
    """What is seen raises, and the tensor is as it was."""
    weight = nn.Parameter(torch.ones(3))

    def refuse(operation: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if operation in (aten.mul_.Tensor, aten.add_.Tensor):
            raise ValueError(f"{operation}")

    with _torch.Foreseen(refuse):
        for edit in (lambda: weight.data.mul_(2), lambda: weight.detach()[1:].add_(1)):
            with pytest.raises(ValueError, match="aten"):
                edit()
        with FakeTensorMode() as mode:
            assert isinstance(mode.from_tensor(torch.ones(3)) * 2, torch.Tensor)
        assert torch.equal(weight, torch.ones(3))
        with _torch.unforeseen():
            weight.data.mul_(2)
    assert torch.equal(weight, torch.full((3,), 2.0))


def test_below_autograd_nothing_is_recorded() -> None:
    weight = nn.Parameter(torch.ones(3))
    with _torch.below_autograd():
        assert not (weight * 2).requires_grad
    assert (weight * 2).requires_grad


def test_a_traced_value_is_one_whose_operations_somebody_follows() -> None:
    plain, found = torch.ones(2, 3), []

    def note(value: Tensor) -> Tensor:
        found.append(_torch.is_traced(value))
        return value * 2

    for call in (
        lambda: torch.fx.symbolic_trace(note),
        lambda: torch.fx.experimental.proxy_tensor.make_fx(note)(plain),
        lambda: torch.func.vmap(note)(plain),
        lambda: torch.compile(note, backend="eager", fullgraph=True)(plain),
        lambda: note(FakeTensorMode().from_tensor(plain)),
    ):
        call()
    with _torch.Foreseen(lambda operation, args, kwargs: None):
        note(plain)
    assert found == [True] * 6
    assert not any(_torch.is_traced(value) for value in (plain, nn.Parameter(plain)))
    with torch.no_grad(), torch.device("cpu"):
        assert not _torch.is_traced(plain)
