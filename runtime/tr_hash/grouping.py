"""Which tokens pass the same experts together: groups of one expert each, or of one pair of experts.

Sorting is stable, so the order of every sum, and with it every bit of a result, is the same in each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor


class Grouping(NamedTuple):
    """Assignments of tokens to groups, sorted by group.

    Attributes:
        experts: of each group, the numbers of its experts, ascending, one perhaps twice; g of them in every group.
        counts: of each group, how many tokens it has.
        tokens: int64 [R].
        factors: [R, g], what each expert's output counts for each token.
    """

    experts: Sequence[tuple[int, ...]]
    counts: list[int]
    tokens: Tensor
    factors: Tensor

    def parts(self, *sorted_rows: Tensor) -> Iterator[tuple[tuple[int, ...], Sequence[Tensor]]]:
        """Of each group that has any rows: its experts, and its rows of every tensor of R."""
        blocks = zip(*(each.split_with_sizes(self.counts) for each in sorted_rows), strict=True)
        for experts, count, rows in zip(self.experts, self.counts, blocks, strict=True):
            if count:
                yield experts, rows


def by_expert(routes: Tensor, weights: Sequence[float], num_experts: int, dtype: torch.dtype) -> Grouping:
    """A group for each expert that occurs; a token is in one for each route position of weight other than 0.

    Args:
        routes: int64 [K, N].
        weights: of each route position.
        dtype: of the factors.
    """
    live, tokens = [position for position, weight in enumerate(weights) if weight], routes.shape[1]
    flat = (routes if len(live) == len(weights) else routes[live]).reshape(-1)
    order = torch.argsort(flat, stable=True)
    if len({weights[position] for position in live}) == 1:
        factors = torch.full((len(order), 1), weights[live[0]], dtype=dtype, device=routes.device)
    else:
        factors = torch.tensor([weights[position] for position in live], dtype=dtype).to(routes.device)
        factors = factors.repeat_interleave(tokens)[order].unsqueeze(1)
    counts = torch.bincount(flat, minlength=num_experts).tolist()
    return Grouping([(expert,) for expert in range(num_experts)], counts, order % tokens, factors)


def by_pair(routes: Tensor, weights: Sequence[float], num_experts: int, dtype: torch.dtype) -> Grouping:
    """A group for each unordered pair of experts that occurs, of one expert with itself too; a token is in one of them.

    Args: as of `by_expert`, but K must be 2 and no weight 0.
    """
    pairs = list(combinations_with_replacement(range(num_experts), 2))
    index = torch.zeros(num_experts, num_experts, dtype=torch.int64)
    for place, (low, high) in enumerate(pairs):
        index[low, high] = index[high, low] = place
    flat = index.to(routes.device)[routes[0], routes[1]]
    order = torch.argsort(flat, stable=True)
    primary, secondary = weights
    either_way = torch.tensor([[primary, secondary], [secondary, primary]], dtype=dtype).to(routes.device)
    swapped = (routes[0] > routes[1]).long()[order]
    return Grouping(pairs, torch.bincount(flat, minlength=len(pairs)).tolist(), order, either_way[swapped])
