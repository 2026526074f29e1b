"""A rule of classes means the same in Python, as tensors and in the graph; tables by class lose nothing as stored."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

import foldfx
from foldfx.errors import PassError
from foldfx.passes.builder import Builder, provide
from foldfx.passes.tables.class_index import emit_classes
from foldfx.passes.tables.encode import Encoded, encode
from foldfx.passes.tables.row_classes import BuiltAt, RowClasses, from_rows

SHAPES: dict[int, list[tuple[int, ...]]] = {
    0: [()],
    1: [(n,) for n in range(201)],
    2: [(1, 7), (7, 1), (3, 5), (0, 4), (4, 0), (2, 100), (16, 4)],
    3: [(1, 1, 1), (2, 3, 4), (1, 0, 2), (5, 1, 13)],
}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def rules(most: int = 200) -> st.SearchStrategy[RowClasses]:
    """Any bounds, and one class or several by position for each interval."""
    bounds = st.lists(st.integers(1, most), max_size=6, unique=True).map(sorted)
    row = st.lists(st.integers(0, 4), min_size=1, max_size=9)
    built = tuple(BuiltAt(count) for count in range(5))
    return bounds.flatmap(
        lambda edges: st.lists(row, min_size=len(edges) + 1, max_size=len(edges) + 1).map(
            lambda rows: RowClasses(tuple(edges), tuple(map(tuple, rows)), built)
        )
    )


def by_hand(classes: RowClasses, count: int) -> list[int]:
    """The definition once more, a loop over everything."""
    for bound, row in zip([*classes.bounds, None], classes.classes, strict=True):
        if bound is None or count <= bound:
            return [row[place] if place < len(row) else row[-1] for place in range(count)]
    raise AssertionError


@settings(max_examples=30)
@given(rules())
def test_the_rule_as_tensors_is_the_rule(classes: RowClasses) -> None:
    bounds, rows = classes.rule()
    assert (bounds.dtype, rows.dtype) == (torch.int64, torch.int64)
    for count in range(201):
        expected = torch.tensor(by_hand(classes, count), dtype=torch.int64)
        assert torch.equal(classes.of(count), expected)
        interval = torch.bucketize(torch.tensor(count), bounds)
        assert torch.equal(rows[interval, torch.arange(count).clamp(max=rows.shape[1] - 1)], expected)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=30))
def test_the_shortest_rule_holds_every_row(rows: list[list[int]]) -> None:
    measured = {n: tuple(row[min(place, len(row) - 1)] for place in range(n)) for n, row in enumerate(rows, 1)}
    bounds, classes = from_rows(measured)
    rule = RowClasses(bounds, classes, ())
    for count, row in measured.items():
        assert tuple(rule.of(count).tolist()) == row
    assert len(bounds) + 1 == len(classes)
    uniform = [len(set(row)) == 1 and row[0] for row in measured.values()]
    changes = sum(a is False or b is False or a != b for a, b in pairwise(uniform))
    assert len(bounds) == changes


def test_between_counts_that_were_not_measured_the_later_holds() -> None:
    assert from_rows({1: (0,), 2: (1, 1), 8: (2,) * 8, 9: (2,) * 9}) == ((1, 2), ((0,), (1,), (2,)))


@pytest.fixture(scope="module")
def captured() -> dict[tuple[int, torch.dtype], foldfx.Program]:
    """A program over ids of each rank and dtype."""
    model = nn.Embedding(7, 3).eval().requires_grad_(False)
    ids = [torch.randint(7, (2, 3, 4)[:rank], dtype=dtype) for rank in SHAPES for dtype in (torch.int32, torch.int64)]
    return {(each.dim(), each.dtype): foldfx.capture(model, (each,)) for each in ids}


def emitted(program: foldfx.Program, classes: RowClasses) -> GraphModule:
    """A graph that returns the class of every id."""
    copy = program.copy()
    (ids,) = copy.input_nodes()
    (output,) = (node for node in copy.graph.nodes if node.op == "output")
    anchor = next(node for node in copy.graph.nodes if node.target is torch.ops.aten.embedding.default)
    found = emit_classes(Builder(copy.module, anchor, "test"), ids, classes, "t.rule")
    assert found.meta["val"].shape == ids.meta["val"].shape
    output.args = (found,)
    for node in [node for node in copy.graph.nodes if node.op == "call_module"]:
        copy.graph.erase_node(node)
    copy.graph.set_codegen(torch.fx.graph.CodeGen())
    copy.module.recompile()
    return copy.module


@settings(max_examples=30)
@given(rules(), st.sampled_from([*SHAPES]), st.sampled_from([torch.int32, torch.int64]))
def test_the_graph_follows_the_rule(captured: Any, classes: RowClasses, rank: int, dtype: torch.dtype) -> None:
    """For no ids at all, too; and by the number and order of ids alone."""
    module = emitted(captured[rank, dtype], classes)
    for shape in SHAPES[rank]:
        ids = torch.randint(7, shape, dtype=dtype)
        found = module(ids)
        assert (found.dtype, found.shape) == (torch.int64, ids.shape)
        assert found.reshape(-1).tolist() == by_hand(classes, ids.numel())
        if len(shape) > 1:
            assert torch.equal(module(ids.transpose(0, 1)).reshape(-1), found.reshape(-1))


@pytest.mark.parametrize("rows", [((0,), (1,)), ((0, 1), (1,))], ids=["by count", "by position"])
def test_positions_are_looked_at_only_where_they_matter(rows: tuple[tuple[int, ...], ...], captured: Any) -> None:
    module = emitted(captured[2, torch.int64], RowClasses((3,), rows, ()))
    targets = {node.target for node in module.graph.nodes}
    assert (torch.ops.aten.arange.default in targets) is (len(rows[0]) > 1)


def test_state_is_not_overwritten(captured: Any) -> None:
    """Equal state may be registered twice; other state of the same name is an error."""
    module = captured[2, torch.int64].copy().module
    provide(module, "t.rule", torch.tensor([1.0]))
    provide(module, "t.rule", torch.tensor([1.0]))
    with pytest.raises(PassError, match=r"other state t\.rule"):
        provide(module, "t.rule", torch.tensor([2.0]))


def stored(classes: list[list[Tensor]], alone: bool = False) -> tuple[list[Node], Encoded]:
    """Tables of all classes encoded together, and every bit of each read back."""
    graph = Graph()
    nodes = [graph.placeholder(f"v{place}") for place in range(len(classes[0]))]
    first, *others = [dict(zip(nodes, each, strict=True)) for each in classes]
    encoded = encode(first, "t", nodes if alone else (), others)
    module: Any = SimpleNamespace(t=SimpleNamespace(**{name.removeprefix("t."): each for name, each in encoded.state.items()}))
    count = classes[0][0].shape[0]
    rows, chosen = torch.randint(count, (3 * count,)), torch.randint(len(classes), (3 * count,))
    found = {node: table for pack in encoded.packs for node, table in pack.decode(module, rows, chosen).items()}
    for place, node in enumerate(nodes):
        expected = torch.stack([tables[place] for tables in classes])[chosen, rows]
        assert found[node].dtype == expected.dtype
        size = BITS[expected.element_size()]
        assert torch.equal(found[node].contiguous().view(size), expected.contiguous().view(size))
    assert encoded.bytes == sum(tensor.numel() * tensor.element_size() for tensor in encoded.state.values())
    return nodes, encoded


@given(data=st.data())
def test_every_bit_of_every_class_is_read_back(data: st.DataObject) -> None:
    """Random bytes; rows, values and whole classes that are equal or not; ±0 and NaNs of all payloads among them."""
    rows, count = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 8))
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
    values = data.draw(st.lists(st.tuples(dtypes, st.integers(1, 9), st.booleans()), min_size=1, max_size=3))
    classes: list[list[Tensor]] = [[] for _ in range(count)]
    for dtype, width, same in values:
        raw = torch.randint(2 if dtype is torch.bool else 256, (rows, width * dtype.itemsize), dtype=torch.uint8)
        base = torch.where(torch.rand(rows, 1) < 0.3, 0, raw).view(dtype)
        for tables in classes:
            other = base[torch.randint(rows, (rows,))]
            tables.append(base.clone() if same else torch.where(torch.rand(rows, 1) < 0.5, base, other))
    stored(classes, data.draw(st.booleans()))


def test_equal_rows_of_different_classes_are_stored_once() -> None:
    table, odd = torch.randn(20, 6), torch.randn(20, 6)
    second = torch.where(torch.arange(20)[:, None] < 3, odd, table)
    _, encoded = stored([[table], [second], [table.clone()], [second.flip(0).flip(0)]])
    (pack,) = encoded.packs
    assert encoded.state[pack.state].shape == (23, 6)
    assert encoded.state[str(pack.remap)].shape == (20, 4)
    assert encoded.bytes == 23 * 6 * 4 + 20 * 4


def test_rows_that_differ_in_a_sign_of_zero_are_two() -> None:
    zero = torch.zeros(5, 3)
    assert stored([[zero], [-zero]])[1].state["t.v0"].shape == (2, 3)


def test_a_value_that_is_equal_in_all_classes_has_one_plain_table() -> None:
    """And its twin, one bit apart, has rows by class; so has every class when counted."""
    same, other = torch.randn(20, 4), torch.randn(20, 4)
    changed = other.clone()
    changed[7, 2] = -changed[7, 2]
    nodes, encoded = stored([[same, other], [same.clone(), changed], [same, other]])
    packs = {part.value: pack for pack in encoded.packs for part in pack.parts}
    assert [packs[node].classes for node in nodes] == [1, 3]
    assert packs[nodes[0]].remap is None
    assert encoded.bytes == 20 * 4 * 4 + 21 * 4 * 4 + 20 * 3


def outcome(model: nn.Module, ids: Tensor) -> Any:
    try:
        return model(ids)
    except (IndexError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "found"])
@pytest.mark.parametrize("read", ["embedding", "index", "gather"])
def test_ids_outside_raise_as_before(read: str, stated: bool, planted: Any, rounding: Any) -> None:
    """With a table for each class, for ids of any rank and dtype (gather: those captured). Negative ids count as they did."""
    sizes = {1: 1, 2: 3, 3: 3, 4: 3}
    planted.by_count(lambda n: n if n in (1, 3) else sizes.get(n, 0) if stated else int(n < 9))
    profiles = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 4, "evaluation_rows": 3}] if stated else None
    model = rounding(read)
    result = planted.fold(model, profiles=profiles)
    assert result.accepted, str(result.report)
    assert any(len(each.shape) == 2 and each.dtype is torch.uint8 and each.shape[1] > 1 for each in result.module.buffers())
    last = planted.VOCABULARY
    seen = set()
    for wrong in (0, last - 1, last, last + 7, -1, -last, -last - 1, 2**31 - 1, -(2**31)):
        for shape in ((), (1,), (3,), (12,), (2, 2), (3, 4), (2, 1, 2)):
            if read == "gather" and len(shape) != 2:
                continue
            for dtype in (torch.int64, torch.int32)[: 1 if read == "gather" else 2]:
                ids = torch.randint(last, shape, dtype=dtype)
                ids.view(-1)[-1] = wrong
                expected, found = outcome(model, ids), outcome(result.module, ids)
                seen.add(expected if isinstance(expected, type) else Tensor)
                assert torch.equal(expected, found) if isinstance(expected, Tensor) else expected is found, (
                    shape,
                    dtype,
                    wrong,
                )
    assert seen == {Tensor, RuntimeError if read == "gather" else IndexError}
