"""What every route table is by construction, for sizes drawn at random."""

from __future__ import annotations

import hypothesis
import pytest
import sympy
import torch
from hypothesis import strategies as st

from foldfx.runtime.tr_hash import RouteTable, TRHashStrategy, build_route_table

SIZES = [(experts, top_k) for experts in (1, 2, 4, 8, 16) for top_k in (1, 2, 4) if top_k <= experts]


@st.composite
def tables(draw: st.DrawFn, strategies: list[TRHashStrategy] | None = None) -> RouteTable:
    strategy = draw(st.sampled_from(strategies or list(TRHashStrategy)))
    hierarchical = strategy is TRHashStrategy.HIERARCHICAL_HASH
    sizes = [(experts, top_k) for experts, top_k in SIZES if not hierarchical or (experts >= 4 and top_k <= experts // 2)]
    experts, top_k = draw(st.sampled_from(sizes))
    return build_route_table(
        strategy,
        vocab_size=draw(st.integers(1, 300)),
        num_experts=experts,
        top_k=top_k,
        layer_index=draw(st.integers(0, 40)),
        route_seed=draw(st.integers(-(2**70), 2**70)),
        route_hash_count=draw(st.integers(2, 8)),
    )


@hypothesis.given(tables())
def test_experts_of_a_token_are_distinct_and_in_range(table: RouteTable) -> None:
    experts = table.experts
    assert experts.dtype == torch.uint8
    assert int(experts.max()) < table.num_experts
    assert all(len(set(column)) == table.top_k for column in experts.T.tolist())


@hypothesis.given(tables([TRHashStrategy.BALANCED_HASH, TRHashStrategy.MODULO_CYCLIC]))
def test_complete_blocks_are_exactly_balanced(table: RouteTable) -> None:
    """⌊V/E⌋ complete blocks give each expert as many tokens in each position, and the rest of the ids at most one more."""
    occupancy, full = table.occupancy(), table.vocab_size // table.num_experts
    assert set(occupancy.flatten().tolist()) <= {full, full + 1}
    assert (occupancy.sum(1) == table.vocab_size).all()


@pytest.mark.parametrize("experts", [4, 8, 16])
def test_multi_hash_uses_every_pair(experts: int) -> None:
    """Both orders, each near its share: the number of ordered pairs is sympy's falling factorial E(E-1)."""
    vocab_size = 60_000
    table = build_route_table(TRHashStrategy.MULTI_HASH, vocab_size=vocab_size, num_experts=experts, top_k=2)
    counts = table.pair_occupancy()
    used = counts[~torch.eye(experts, dtype=torch.bool)]
    assert int((used > 0).sum()) == sympy.ff(experts, 2)
    share = vocab_size / float(sympy.ff(experts, 2))
    assert float((used - share).abs().max()) < 6 * share**0.5  # six standard deviations of a multinomial share
    assert int(counts.diagonal().sum()) == 0


@hypothesis.given(tables([TRHashStrategy.MODULO_CYCLIC, TRHashStrategy.AFFINE_HASH, TRHashStrategy.MULTI_HASH]))
def test_equal_seeds_modulo_two_to_the_32(table: RouteTable) -> None:
    again = [
        build_route_table(TRHashStrategy.MULTI_HASH, vocab_size=9, num_experts=4, top_k=2, route_seed=seed)
        for seed in (5, 5 + 2**32, 5 - 2**40)
    ]
    assert len(set(again)) == 1
    assert table == RouteTable(table.experts, table.num_experts)


@pytest.mark.parametrize("strategy", [TRHashStrategy.MODULO_CYCLIC, TRHashStrategy.AFFINE_HASH, TRHashStrategy.MULTI_HASH])
def test_prefix_stable_strategies(strategy: TRHashStrategy) -> None:
    short, long = (build_route_table(strategy, vocab_size=size, num_experts=8, top_k=4) for size in (30, 20_000))
    assert torch.equal(long.experts[:, :30], short.experts)


def test_ties_fall_to_the_lowest_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    from foldfx.runtime.tr_hash import strategies

    monkeypatch.setattr(strategies, "mix32", lambda words: words * 0)
    table = build_route_table(TRHashStrategy.MULTI_HASH, vocab_size=5, num_experts=8, top_k=4)
    assert table.experts.tolist() == [[0] * 5, [1] * 5, [2] * 5, [3] * 5]


@hypothesis.given(st.sampled_from([(4, 2), (8, 2), (8, 4), (16, 4)]), st.integers(0, 2**32), st.integers(0, 9))
def test_the_parent_of_a_hierarchical_route_is_balanced(sizes: tuple[int, int], seed: int, layer: int) -> None:
    experts, top_k = sizes
    table, parents = (
        build_route_table(strategy, vocab_size=90, num_experts=count, top_k=top_k, route_seed=seed, layer_index=layer)
        for strategy, count in ((TRHashStrategy.HIERARCHICAL_HASH, experts), (TRHashStrategy.BALANCED_HASH, experts // 2))
    )
    assert table.folded(experts // 2) == parents
