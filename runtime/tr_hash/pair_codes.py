"""One byte for the two experts of a token, as published checkpoints store it; derived from the table, never trusted."""

from __future__ import annotations

from itertools import combinations

import torch

from .route_table import RouteTable

FEW_PAIRS = 8
SMALLEST, LARGEST = 2, 8


def pairs_eligible(num_experts: int, top_k: int) -> bool:
    """Whether the pair of a token fits a code: two routes among two to eight experts."""
    return top_k == 2 and SMALLEST <= num_experts <= LARGEST


def expert_pairs(num_experts: int) -> torch.Tensor:
    """Unordered pairs in lexicographic order, int32 [E(E-1)/2, 2]."""
    return torch.tensor(list(combinations(range(num_experts), 2)), dtype=torch.int32, device="cpu").reshape(-1, 2)


def pair_codes(table: RouteTable) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the pairs they index.

    A code is the pair's index, plus 8 (32 where there are more than eight pairs) if the larger expert is primary.

    Returns:
        uint8 [V] and int32 [P, 2], both on the CPU; empty, [0] and [0, 2], where a pair does not fit a code.
    """
    if not pairs_eligible(table.num_experts, table.top_k):
        return torch.empty(0, dtype=torch.uint8, device="cpu"), torch.empty((0, 2), dtype=torch.int32, device="cpu")
    pairs = expert_pairs(table.num_experts)
    swap = FEW_PAIRS if len(pairs) <= FEW_PAIRS else 4 * FEW_PAIRS
    code_of = torch.zeros((table.num_experts, table.num_experts), dtype=torch.uint8, device="cpu")
    for index, (low, high) in enumerate(pairs.tolist()):
        code_of[low, high], code_of[high, low] = index, index + swap
    primary, secondary = table.experts.long()
    return code_of[primary, secondary], pairs
