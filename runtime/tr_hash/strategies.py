"""The five constructions of a route table. Each returns expert ids, uint8 [K, V], row 0 the primary route.

Source of the formulas: the published TR-Hash contract; the tables are compared with golden ones, bit for bit. The
modulo, affine and multi-hash routes of a token do not depend on V, the other two permute the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .config import TRHashStrategy
from .hashing import CHANNEL, EXPERT, MASK, Words, layer_permutation, layer_salt, mix32, word

Experts = NDArray[np.uint8]
CHUNK = 1 << 14  # tokens scored at a time by the multi-hash, so that scores stay in the cache
EXPERT_BITS = 4


class RouteRequest(NamedTuple):
    """What a route table is built from; see `TRHashEngineConfig` for the fields."""

    vocab_size: int
    num_experts: int
    top_k: int
    layer_index: int
    route_seed: int
    route_hash_count: int

    @property
    def salt(self) -> int:
        """The layer's 32-bit salt."""
        return layer_salt(self.route_seed, self.layer_index)


def modulo_cyclic(request: RouteRequest) -> Experts:
    """R[j, t] = (p[t mod E] + j) mod E, with a permutation p for each layer."""
    experts = request.num_experts
    order = layer_permutation(experts, request.layer_index, request.route_seed ^ 0xC0DE)
    primary = order[np.arange(request.vocab_size) % experts]
    return _positions(primary, np.ones_like(primary), request)


def balanced_hash(request: RouteRequest) -> Experts:
    """Blocks of E shuffled tokens; within one, every expert occurs once in each route position.

    With rank r of token o[r], block g = r div E and odd stride s(g): R[j, o[r]] = p[(r mod E + j·s(g)) mod E].
    """
    vocab_size, experts = request.vocab_size, request.num_experts
    if experts == 1:
        return np.zeros((request.top_k, vocab_size), dtype=np.uint8)
    tokens = layer_permutation(vocab_size, request.layer_index, request.route_seed)
    order = layer_permutation(experts, request.layer_index, request.route_seed ^ 0x5EC0D).astype(np.uint8)
    ranks = np.arange(vocab_size)
    stride = 2 * (mix32((ranks // experts).astype(np.uint32) + word(request.salt)) % np.uint32(experts // 2)) + 1
    table = np.empty((request.top_k, vocab_size), dtype=np.uint8)
    table[:, tokens] = order[_positions(ranks % experts, stride, request)]
    return table


def affine_hash(request: RouteRequest) -> Experts:
    """R[j, t] = (base(t) + j · stride(t)) mod E, both hashed, the stride odd: K distinct experts where E is 2^n."""
    tokens, experts = np.arange(request.vocab_size, dtype=np.uint32), np.uint32(request.num_experts)
    base = mix32(tokens ^ word(request.salt)) % experts
    stride = (mix32(tokens + word(request.salt ^ CHANNEL)) | np.uint32(1)) % experts
    return _positions(base, stride, request)


def multi_hash(request: RouteRequest) -> Experts:
    """The K experts with the largest score, descending; score(t, e) sums one hash of (t, e) for each channel.

    Equal scores: the lowest expert id first.
    """
    table = np.empty((request.top_k, request.vocab_size), dtype=np.uint8)
    for first in range(0, request.vocab_size, CHUNK):
        last = min(first + CHUNK, request.vocab_size)
        table[:, first:last] = _best(np.arange(first, last, dtype=np.uint32), request)
    return table


def _best(tokens: Words, request: RouteRequest) -> Experts:
    """Ranks by score · 16 + (15 - expert): all different, and ties fall to the lowest expert."""
    last = (1 << EXPERT_BITS) - 1
    best = np.zeros((request.top_k, tokens.size), dtype=np.int64)
    for expert in range(request.num_experts):
        key = np.zeros(tokens.size, dtype=np.int64)
        for channel in range(request.route_hash_count):
            salt = (request.salt + channel * CHANNEL) & MASK
            expert_salt = int(mix32(np.array([(expert + (salt ^ EXPERT)) & MASK], dtype=np.uint32))[0])
            key += mix32(tokens ^ word(expert_salt ^ salt))
        key = (key << EXPERT_BITS) + (last - expert)
        for place in best:
            smaller = np.minimum(place, key)
            np.maximum(place, key, out=place)
            key = smaller
    return (last - (best & last)).astype(np.uint8)


def hierarchical_hash(request: RouteRequest) -> Experts:
    """Balanced routes over E/2 parents, each then one of its two children: R mod E/2 is the parent.

    Raises:
        ValueError: E is odd or below four, or K exceeds E/2.
    """
    experts = request.num_experts
    if experts < 4 or experts % 2:
        raise ValueError(f"hierarchical hash requires an even expert count of at least four, got {experts}")
    if request.top_k > experts // 2:
        raise ValueError(
            f"top_k cannot exceed the hierarchical parent expert count, got top_k={request.top_k} of {experts // 2} parents"
        )
    parents = balanced_hash(request._replace(num_experts=experts // 2))
    return expand(parents, experts // 2, experts, request.layer_index, request.route_seed)


def expand(routes: Experts, source_experts: int, target_experts: int, layer_index: int, route_seed: int) -> Experts:
    """Routes to m · E₀ experts, where experts e, e + E₀, … are the clones of e, one chosen by a hash of token and position.

    Args:
        routes: uint8 [K, V] over E₀ = `source_experts`.
        target_experts: a multiple m · E₀, at most 256.

    Raises:
        ValueError: not a multiple.
    """
    clones, rest = divmod(target_experts, source_experts)
    if rest or not clones or target_experts > 256:
        raise ValueError(f"cannot expand {source_experts} experts to {target_experts}; give a multiple up to 256")
    tokens, salt = np.arange(routes.shape[1], dtype=np.uint32), word(layer_salt(route_seed, layer_index))
    table = np.empty_like(routes)
    for position, parents in enumerate(routes):
        seeds = parents.astype(np.uint32) * np.uint32(CHANNEL) ^ word(position * EXPERT) ^ salt
        table[position] = parents + (mix32(tokens ^ seeds) % np.uint32(clones)).astype(np.uint8) * np.uint8(source_experts)
    return table


def _positions(base: NDArray[np.integer], stride: NDArray[np.integer], request: RouteRequest) -> Experts:
    return np.stack([((base + position * stride) % request.num_experts).astype(np.uint8) for position in range(request.top_k)])


BUILDERS: dict[TRHashStrategy, Callable[[RouteRequest], Experts]] = {
    TRHashStrategy.MODULO_CYCLIC: modulo_cyclic,
    TRHashStrategy.BALANCED_HASH: balanced_hash,
    TRHashStrategy.AFFINE_HASH: affine_hash,
    TRHashStrategy.MULTI_HASH: multi_hash,
    TRHashStrategy.HIERARCHICAL_HASH: hierarchical_hash,
}
