"""RouteTable as a value: what it refuses, what it tells, and that it cannot change."""

from __future__ import annotations

import pytest
import torch

from foldfx.runtime.tr_hash import RouteTable, TRHashStrategy, build_route_table, pair_codes

EXPERTS = [[0, 1, 2], [3, 0, 1]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_any_integer_dtype_becomes_bytes(dtype: torch.dtype) -> None:
    table = RouteTable(torch.tensor(EXPERTS, dtype=dtype), 4)
    assert table.experts.dtype == torch.uint8
    assert table.experts.tolist() == EXPERTS
    assert (table.top_k, table.vocab_size, table.num_experts) == (2, 3, 4)


@pytest.mark.parametrize(
    ("experts", "count", "error", "message"),
    [
        ([[0.0, 1.0]], 4, TypeError, "must hold integers, got float"),
        ([[True, False]], 4, TypeError, "must hold integers, got bool"),
        ([0, 1], 4, ValueError, r"got shape \(2,\)"),
        ([[], []], 4, (TypeError, ValueError), "route_table must"),
        ([[0, 4], [1, 0]], 4, ValueError, "out-of-range expert index: 4 at route position 0 of token 1, with experts 0..3"),
        ([[0, 1], [1, -1]], 4, ValueError, "out-of-range expert index: -1 at route position 1 of token 1"),
        ([[0, 256 + 1]], 4, ValueError, "out-of-range expert index: 257"),
        ([[0, 1], [2, 3], [1, 1]], 4, ValueError, "token 1 has expert 1 in route positions 0 and 2"),
        ([[0]], 0, ValueError, r"int in 1\.\.256, got 0"),
        ([[0]], 257, ValueError, r"int in 1\.\.256, got 257"),
        ([[0]], True, ValueError, r"int in 1\.\.256, got True"),
        (torch.empty(2, 3, dtype=torch.int64, device="meta"), 4, ValueError, "meta device has no content"),
    ],
)
def test_refused(experts: object, count: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RouteTable(experts, count)  # type: ignore[arg-type]


def test_a_table_cannot_be_changed_from_outside() -> None:
    given = torch.tensor(EXPERTS)
    table = RouteTable(given, 4)
    before = table.sha256
    given.zero_()
    table.experts.zero_()
    assert RouteTable(table.experts, 4).sha256 == before == table.sha256
    with pytest.raises(AttributeError):
        table.num_experts = 8  # type: ignore[misc]


def test_equality_is_of_content() -> None:
    table = RouteTable(EXPERTS, 4)
    assert table == RouteTable(torch.tensor(EXPERTS, dtype=torch.int32), 4)
    assert hash(table) == hash(RouteTable(EXPERTS, 4))
    assert table != RouteTable(EXPERTS, 8)
    assert table != RouteTable([[0, 1, 2, 3, 0, 1]], 4)  # the same bytes in one row
    assert table != EXPERTS


def test_occupancy() -> None:
    table = RouteTable(EXPERTS, 4)
    assert table.occupancy().tolist() == [[1, 1, 1, 0], [1, 1, 0, 1]]
    pairs = table.pair_occupancy()
    assert {tuple(pair): int(pairs[tuple(pair)]) for pair in pairs.nonzero().tolist()} == {(0, 3): 1, (1, 0): 1, (2, 1): 1}
    assert torch.equal(table.pair_occupancy(1, 0), pairs.T)
    with pytest.raises(IndexError):
        table.pair_occupancy(0, 2)


def test_expansion_and_folding_refuse_other_counts() -> None:
    table = RouteTable(EXPERTS, 4)
    for count in (0, 6, 512):
        with pytest.raises(ValueError, match="cannot expand 4 experts"):
            table.expanded(count, layer_index=0)
    with pytest.raises(ValueError, match="3 does not divide 4"):
        table.folded(3)
    with pytest.raises(ValueError, match="distinct experts"):
        RouteTable([[0], [2]], 4).folded(2)


def test_pair_codes_of_known_pairs() -> None:
    codes, pairs = pair_codes(RouteTable([[0, 2, 3], [3, 0, 1]], 4))
    assert codes.tolist() == [2, 9, 12]
    assert pairs.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert (codes.dtype, pairs.dtype) == (torch.uint8, torch.int32)


@pytest.mark.parametrize("experts", [2, 4, 8])
def test_pair_codes_say_the_routes(experts: int) -> None:
    table = build_route_table(TRHashStrategy.MULTI_HASH, vocab_size=400, num_experts=experts, top_k=2)
    codes, pairs = pair_codes(table)
    bit = 8 if len(pairs) <= 8 else 32
    swapped = codes.long() // bit == 1
    ordered = torch.where(swapped[:, None], pairs[codes.long() % bit].flip(1), pairs[codes.long() % bit])
    assert ordered.T.tolist() == table.experts.tolist()


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (4, 1), (8, 4), (16, 2)])
def test_no_codes_where_a_pair_does_not_fit(experts: int, top_k: int) -> None:
    codes, pairs = pair_codes(build_route_table("modulo_cyclic", vocab_size=20, num_experts=experts, top_k=top_k))
    assert (tuple(codes.shape), tuple(pairs.shape)) == ((0,), (0, 2))
