"""Which tokens pass the same experts together: groups of one expert each, or of one pair of experts.

Sorting is stable, so the order of every sum, and with it every bit of a result, is the same in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """Tokens that pass the same experts.

    Attributes:
        experts: their numbers, ascending.
        tokens: int64 [n], distinct.
        factors: [n, len(experts)], what each expert's output counts for each token.
    """

    experts: tuple[int, ...]
    tokens: Tensor
    factors: Tensor


def by_expert(routes: Tensor, weights: Sequence[float], num_experts: int, dtype: torch.dtype) -> list[Group]:
    """A group for each expert that occurs; a token is in one for each route position of weight other than 0.

    Args:
        routes: int64 [K, N], distinct for each token.
        weights: of each route position.
        dtype: of the factors.
    """
    live, tokens = [position for position, weight in enumerate(weights) if weight], routes.shape[1]
    flat = routes[live].reshape(-1)
    order = torch.argsort(flat, stable=True)
    factors = torch.tensor([weights[position] for position in live], dtype=dtype).to(routes.device)
    factors = factors.repeat_interleave(tokens)[order].unsqueeze(1)
    return _cut([(expert,) for expert in range(num_experts)], flat, order % tokens, factors)


def by_pair(routes: Tensor, weights: Sequence[float], num_experts: int, dtype: torch.dtype) -> list[Group]:
    """A group for each unordered pair of experts that occurs; a token is in one of them.

    Args: as of `by_expert`, but K must be 2 and no weight 0.
    """
    pairs = list(combinations(range(num_experts), 2))
    index = torch.zeros(num_experts, num_experts, dtype=torch.int64)
    for place, (low, high) in enumerate(pairs):
        index[low, high] = index[high, low] = place
    flat = index.to(routes.device)[routes[0], routes[1]]
    order = torch.argsort(flat, stable=True)
    primary, secondary = weights
    either_way = torch.tensor([[primary, secondary], [secondary, primary]], dtype=dtype).to(routes.device)
    swapped = (routes[0] > routes[1]).long()[order]
    return _cut(pairs, flat, order, either_way[swapped])


def _cut(experts: Sequence[tuple[int, ...]], flat: Tensor, tokens: Tensor, factors: Tensor) -> list[Group]:
    """Sorted assignments cut where the group number changes; empty groups left out."""
    counts = torch.bincount(flat, minlength=len(experts)).tolist()
    parts = zip(experts, torch.split(tokens, counts), torch.split(factors, counts), strict=True)
    return [Group(each, own, own_factors) for each, own, own_factors in parts if len(own)]
