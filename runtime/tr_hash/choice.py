"""Which reference lowering computes a call, from its sizes alone.

The thresholds are for a CPU, measured in float32 with one thread at H = 896 over (E, W, K) from (4, 64, 2) to
(16, 256, 2) and 1 to 4,096 tokens (`benchmarks/tr_hash_cpu.py --lowerings` and `--layouts` measure them again):

* masked-dense wins while the columns nobody chose, N·(E-K)·W, are fewer than about 6,144 and every expert is likely
  chosen by someone;
* groups of pairs win once a pair has some 128 tokens, or W/2 if that is more;
* groups of experts win elsewhere.

Without gradients the shared branch of float32 and bfloat16 has tokens as the columns of its pre-activations, not the rows,
while they are 16 to 256: the same multiplications, which the products for a CPU do in 0.83 to 1.03 of the time.

On other devices the masked-dense form is taken: it alone needs neither a host synchronisation nor shapes that depend on
the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

LOWERINGS = ("masked_dense", "by_expert", "by_pair")
AUTO = "auto"

IDLE_COLUMNS = 6_144
TOKENS_OF_A_PAIR = 128
TOKENS_AS_COLUMNS = range(16, 257)


class Choice(NamedTuple):
    """A lowering of `LOWERINGS` and why it was taken."""

    lowering: str
    reason: str


def choose(*, tokens: int | None, num_experts: int, expert_width: int, weights: Sequence[float], device_type: str) -> Choice:
    """The lowering of a call.

    Args:
        tokens: N, or None where it is symbolic: then nothing is assumed of it.
        num_experts, expert_width: E and W, as they are active.
        weights: of the K route positions, scale included.
        device_type: as in `torch.device.type`.
    """
    top_k = len(weights)
    if num_experts == top_k:
        return Choice("masked_dense", "every expert is chosen for every token")
    if device_type != "cpu":
        return Choice("masked_dense", f"on {device_type} it alone needs no host synchronisation")
    if tokens is None:
        return Choice("by_expert", "the number of tokens is not known while tracing")
    idle = tokens * (num_experts - top_k) * expert_width
    if idle <= IDLE_COLUMNS and tokens * top_k >= num_experts:
        return Choice("masked_dense", f"{idle:,} idle columns, at most {IDLE_COLUMNS:,}")
    pairs, enough = num_experts * (num_experts - 1) // 2, max(TOKENS_OF_A_PAIR, expert_width // 2)
    if top_k == 2 and all(weights) and tokens >= enough * pairs:
        return Choice("by_pair", f"{tokens // pairs:,} tokens for each of {pairs} pairs, at least {enough}")
    return Choice("by_expert", f"{idle:,} idle columns in the masked-dense form, {pairs} pairs for {tokens:,} tokens")


def tokens_as_columns(tokens: int, dtype: torch.dtype, device_type: str) -> bool:
    """Whether the shared branch computes G xᵀ, and not x Gᵀ, for this many tokens."""
    return device_type == "cpu" and dtype in (torch.float32, torch.bfloat16) and tokens in TOKENS_AS_COLUMNS


def require_possible(lowering: str, weights: Sequence[float]) -> None:
    """Refuse a lowering asked for by name that cannot compute the call.

    Raises:
        ValueError: an unknown name, or pairs where a token has none.
    """
    if lowering not in (AUTO, *LOWERINGS):
        raise ValueError(f"lowering must be {AUTO} or one of {LOWERINGS}, not {lowering!r}")
    if lowering == "by_pair" and (len(weights) != 2 or not all(weights)):
        raise ValueError(f"by_pair needs two routes of weight other than 0, got weights {list(weights)}; take by_expert")
