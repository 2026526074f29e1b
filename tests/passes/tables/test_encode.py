"""Tables lose nothing by the way they are stored, and take the fewest bytes of the ways there are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

import foldfx
from foldfx.passes.tables.encode import Encoded, encode, unique_rows

VOCABULARY, WIDTH = 40, 24
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Agree = Callable[..., None]


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(SAME_SIZE[tensor.element_size()])


def stored(*tables: Tensor, alone: bool = False) -> tuple[list[Node], Encoded]:
    """The tables encoded together, each for a value of its own, and every bit read back in a shuffled order."""
    graph = Graph()
    nodes = [graph.placeholder(f"v{place}") for place in range(len(tables))]
    encoded = encode(dict(zip(nodes, tables, strict=True)), "t", nodes if alone else ())
    module: Any = SimpleNamespace(t=SimpleNamespace(**{name.removeprefix("t."): each for name, each in encoded.state.items()}))
    rows = torch.randperm(tables[0].shape[0])
    found = {node: table for pack in encoded.packs for node, table in pack.decode(module, rows).items()}
    for node, table in zip(nodes, tables, strict=True):
        assert found[node].dtype == table.dtype
        assert torch.equal(bits(found[node]), bits(table[rows]))
    assert encoded.bytes == sum(tensor.numel() * tensor.element_size() for tensor in encoded.state.values())
    return nodes, encoded


def test_tables_of_one_dtype_lie_side_by_side() -> None:
    tables = [torch.randn(10, 3), torch.randn(10, 5), torch.randn(10, 2).double(), torch.randn(10, 4).bfloat16()]
    nodes, encoded = stored(*tables)
    assert sorted(tuple(tensor.shape) for tensor in encoded.state.values()) == [(10, 2), (10, 4), (10, 8)]
    places = {part.value: (part.start, part.width) for pack in encoded.packs for part in pack.parts}
    assert [places[node] for node in nodes] == [(0, 3), (3, 5), (0, 2), (0, 4)]
    _, apart = stored(*tables, alone=True)
    assert len(apart.packs) == len(tables)
    assert apart.bytes == encoded.bytes == 10 * (8 * 4 + 2 * 8 + 4 * 2)


def test_bits_survive_where_values_are_equal() -> None:
    """±0 and NaNs of other payloads are other rows, other columns and other tables."""
    plus = torch.zeros(6, 2)
    minus = -plus
    assert stored(plus, minus)[1].bytes == 2 * 2 * 4
    assert stored(plus, plus.clone())[1].bytes == 2 * 4
    nan = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    _, encoded = stored(nan.repeat(20)[:, None].expand(60, 4).contiguous())
    assert encoded.state[encoded.packs[0].state].shape == (3, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16, torch.bool])
@pytest.mark.parametrize("same", ["rows", "columns", "both", "nothing"])
def test_any_bit_pattern_is_read_back(dtype: torch.dtype, same: str) -> None:
    """Random bytes: NaNs, infinities and denormals among them."""
    rows, columns = (5 if same in ("rows", "both") else 50), (3 if same in ("columns", "both") else 30)
    size = dtype.itemsize
    raw = torch.randint(2 if dtype is torch.bool else 256, (50, 30 * size), dtype=torch.uint8)
    table = raw.view(dtype)
    again = table[torch.randint(rows, (50,))][:, torch.randint(columns, (30,))]
    assert stored(again, table)[1].bytes <= (again.numel() + table.numel()) * size


def test_a_constant_table_is_one_row() -> None:
    table = torch.randn(1, 7).expand(30, 7).contiguous()
    assert stored(table)[1].bytes == 7 * 4
    table[-1, -1] += 1
    assert stored(table)[1].bytes == 2 * 7 * 4 + 30


@pytest.mark.parametrize(("width", "distinct", "remapped"), [(3, 9, True), (3, 10, False), (2, 8, True), (2, 9, False)])
def test_equal_rows_go_behind_a_remap_only_where_that_is_smaller(width: int, distinct: int, remapped: bool) -> None:
    """Ten rows: k·4w bytes of rows and 10 bytes of row numbers, against 10·4w."""
    assert (distinct * 4 * width + 10 < 10 * 4 * width) is remapped
    table = torch.randn(distinct, width)[torch.arange(10) % distinct]
    _, encoded = stored(table)
    assert (encoded.packs[0].remap is not None) is remapped
    assert encoded.bytes == min(distinct * 4 * width + 10, 10 * 4 * width)


@pytest.mark.parametrize(("rows", "distinct", "indexed"), [(9, 7, True), (9, 8, False), (4, 4, True), (4, 5, False)])
def test_equal_columns_are_stored_once_only_where_that_is_smaller(rows: int, distinct: int, indexed: bool) -> None:
    """Ten columns behind int64 numbers of 80 bytes."""
    table = torch.randn(rows, distinct)[:, torch.arange(10) % distinct]
    small = distinct * rows * 4 + 10 * 8 < 10 * rows * 4
    _, encoded = stored(table)
    assert ((encoded.packs[0].columns is not None), small) == (indexed, indexed)
    assert encoded.bytes == (distinct * rows * 4 + 10 * 8 if indexed else 10 * rows * 4)


@pytest.mark.parametrize(
    ("least", "most", "dtype", "size"),
    [(0, 255, torch.int64, 1), (0, 256, torch.int64, 2), (-1, 127, torch.int64, 1), (-1, 128, torch.int64, 2)]
    + [(0, 2**31, torch.int64, 8), (-(2**31), 0, torch.int64, 4), (0, 2**15, torch.int32, 4), (0, 200, torch.int16, 1)],
)
def test_integers_take_the_fewest_bytes_that_hold_them(least: int, most: int, dtype: torch.dtype, size: int) -> None:
    table = torch.randint(least, most + 1, (30, 30)).to(dtype)
    table[0, 0], table[-1, -1] = least, most
    assert stored(table)[1].bytes == 30 * 30 * size


@pytest.mark.parametrize("collide", [False, True], ids=["as it is", "hash of sums"])
@pytest.mark.parametrize("least", [-2, -(2**62)], ids=["small", "any"])
def test_unique_rows(collide: bool, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every factor 1 the hash is the sum of a row, and rows of one sum collide: they stay apart all the same."""
    table = torch.randint(least, -least, (50, 4))
    table = torch.cat([table, table.flip(1), table.flip(1).roll(1, 0)])
    expected = table.unique(dim=0).shape[0]
    if collide:
        monkeypatch.setattr(torch, "randint", lambda low, high, shape, generator: torch.zeros(shape, dtype=torch.int64))
    distinct, inverse = unique_rows(table)
    assert torch.equal(table[distinct][inverse], table)
    assert torch.equal(distinct, distinct.sort().values)
    assert distinct.numel() > expected if collide else distinct.numel() == expected


class Scores(nn.Module):
    """Decisions on token-only scores, some of them masked: indices and truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.score = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 300)
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.score(self.embedding(ids))
        accepted = (scores[..., :6] > 0) & (ids != 0)[..., None]
        return scores.argmax(-1), accepted.float().cumsum(1), scores[..., :9].argsort(-1)


class Twice(nn.Module):
    """Two projections, equal or not, that leave the program as they are or behind a sum over positions."""

    def __init__(self, equal: bool, inner: bool, through: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.embedding, self.one, self.two = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        if equal:
            self.two.load_state_dict(self.one.state_dict())
        self.inner, self.through = inner, through
        self.eval()

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(ids)
        one, two = self.through(self.one(x)), self.through(self.two(x))
        return (one.cumsum(1), two.cumsum(1)) if self.inner else (one, two)


def fold(model: nn.Module, agree: Agree) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))], dynamic=False)
    ids = torch.randint(VOCABULARY, (3, 5))
    agree(model(ids), result.module(ids), max_abs=1e-5, relative_l2=1e-5)
    return result


def test_decisions_fold_to_bytes(agree: Agree) -> None:
    """argmax of 300 needs two bytes, an order of 9 and a truth value one; equal rows once, behind a byte each."""
    model = Scores()
    result = fold(model, agree)
    scores = model.score(model.embedding.weight)
    rows = [(scores.argmax(-1, keepdim=True), 2), (scores[:, :9].argsort(-1), 1), (scores[:, :6] > 0, 1)]
    whole = [table.shape[1] * size for table, size in rows]
    apart = [table.unique(dim=0).shape[0] for table, _ in rows]
    expected = sum(min(VOCABULARY * row, count * row + VOCABULARY) for row, count in zip(whole, apart, strict=True))
    assert result.report.to_dict()["storage"]["after"] == {"logical": expected, "backing": expected}


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize("inner", [True, False], ids=["inner", "escaping"])
def test_outputs_of_one_table_have_memory_of_their_own(equal: bool, inner: bool, agree: Agree) -> None:
    """A caller may write to what it gets. Inner values stand on the looked-up row itself."""
    model = Twice(equal, inner)
    module = fold(model, agree).module
    bytes_of_one = VOCABULARY * 6 * 4
    assert sum(tensor.numel() * 4 for tensor in module.state_dict().values()) == bytes_of_one * (1 if equal else 2)
    clones = [node for node in module.graph.nodes if node.target is torch.ops.aten.clone.default]
    assert bool(clones) is (equal and not inner)
    ids = torch.randint(VOCABULARY, (3, 5))
    first, second = module(ids)
    first.zero_()
    agree(model(ids)[1], second)
    agree(model(ids), module(ids))


HANDED_BACK: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(-1, 6),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "einsum": lambda x: torch.einsum("bte->ebt", x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0],
}


@pytest.mark.parametrize("through", HANDED_BACK)
def test_outputs_behind_an_operation_that_hands_its_operand_back_are_as_independent(through: str, agree: Agree) -> None:
    """Some of these declare no view in their schema, and return one."""
    model, ids = Twice(True, False, HANDED_BACK[through]), torch.randint(VOCABULARY, (3, 5))
    first, second = fold(model, agree).module(ids)
    first.zero_()
    agree(model(ids)[1], second)


@pytest.mark.parametrize("distinct", [1, 3, VOCABULARY])
def test_repeated_rows_of_an_embedding_are_known_before_its_table_is_built(distinct: int, agree: Agree) -> None:
    """The table is wider than all the weights, and pays only where few of its rows differ."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, WIDTH), nn.Tanh()).eval()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[torch.arange(VOCABULARY) % distinct])
    result = fold(model, agree)
    weights, row = 4 * (VOCABULARY * 4 + 5 * WIDTH), 4 * WIDTH
    expected = {1: row, 3: 3 * row + VOCABULARY, VOCABULARY: weights}[distinct]
    assert result.accepted is (distinct < VOCABULARY)
    assert result.report.to_dict()["storage"]["after"] == {"logical": expected, "backing": expected}
    for token in (VOCABULARY, -1):
        with pytest.raises(IndexError):
            result.module(torch.full((3, 5), token))
