"""A route table as a value: which experts each token id passes, checked when made and immutable afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from .config import DEFAULT_ROUTE_SEED, TRHashEngineConfig, TRHashStrategy
from .strategies import BUILDERS, Experts, RouteRequest, expand

LARGEST_EXPERTS = 256


class RouteTable:
    """Expert ids [K, V], row 0 the primary route; equal tables compare and hash equal.

    Args:
        experts: integer tensor, array or nested sequence [K, V]; copied.
        num_experts: E, 1 to 256, so that an id takes one byte.

    Raises:
        TypeError: not integers.
        ValueError: not two-dimensional or empty; an id outside 0..E-1; one expert twice for a token.
    """

    def __init__(self, experts: torch.Tensor | NDArray[np.integer] | Sequence[Sequence[int]], num_experts: int) -> None:
        if type(num_experts) is not int or not 1 <= num_experts <= LARGEST_EXPERTS:
            raise ValueError(f"num_experts of a route table must be an int in 1..{LARGEST_EXPERTS}, got {num_experts!r}")
        self._experts = _checked(experts, num_experts)
        self._num_experts = num_experts

    @property
    def experts(self) -> torch.Tensor:
        """A copy of the table, uint8 [K, V], on the CPU."""
        return torch.tensor(self._experts, device="cpu")

    @property
    def num_experts(self) -> int:
        """E."""
        return self._num_experts

    @property
    def top_k(self) -> int:
        """K."""
        return int(self._experts.shape[0])

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self._experts.shape[1])

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the expert ids as bytes, row by row."""
        return hashlib.sha256(self._experts.tobytes()).hexdigest()

    def occupancy(self) -> torch.Tensor:
        """Tokens of each expert in each route position, int64 [K, E]."""
        counts = [np.bincount(row, minlength=self.num_experts) for row in self._experts]
        return torch.tensor(np.stack(counts), dtype=torch.int64)

    def pair_occupancy(self, first: int = 0, second: int = 1) -> torch.Tensor:
        """Tokens with expert a in route position `first` and b in `second`, int64 [E, E] at [a, b].

        Raises:
            IndexError: there is no such position.
        """
        pairs = self._experts[first].astype(np.int64) * self.num_experts + self._experts[second]
        counts = np.bincount(pairs, minlength=self.num_experts**2)
        return torch.tensor(counts.reshape(self.num_experts, self.num_experts), dtype=torch.int64)

    def expanded(self, num_experts: int, *, layer_index: int, route_seed: int = DEFAULT_ROUTE_SEED) -> RouteTable:
        """Routes among clones of these experts, expert e being a clone of e mod E.

        Raises:
            ValueError: `num_experts` is no multiple of E.
        """
        return RouteTable(expand(self._experts, self.num_experts, num_experts, layer_index, route_seed), num_experts)

    def folded(self, num_experts: int) -> RouteTable:
        """Routes to experts modulo `num_experts`: undoes `expanded`.

        Raises:
            ValueError: `num_experts` does not divide E, or two routes of a token fall together.
        """
        if num_experts < 1 or self.num_experts % num_experts:
            raise ValueError(f"{num_experts} does not divide {self.num_experts} experts")
        return RouteTable(self._experts % num_experts, num_experts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteTable) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"RouteTable(K={self.top_k}, V={self.vocab_size}, E={self.num_experts}, sha256={self.sha256[:16]}…)"

    def _identity(self) -> tuple[int, int, str]:
        return self.num_experts, self.top_k, self.sha256


def build_route_table(
    strategy: TRHashStrategy | str,
    *,
    vocab_size: int,
    num_experts: int,
    top_k: int,
    layer_index: int = 0,
    route_seed: int = DEFAULT_ROUTE_SEED,
    route_hash_count: int = 2,
) -> RouteTable:
    """The route table of a layer, the same on every machine.

    Args: as the fields of `TRHashEngineConfig` with these names.

    Raises:
        TypeError, ValueError: what the configuration refuses, or sizes the strategy cannot serve.
    """
    config = TRHashEngineConfig(
        hidden_size=1,
        vocab_size=vocab_size,
        num_experts=num_experts,
        top_k=top_k,
        routing_strategy=TRHashStrategy(strategy),
        layer_index=layer_index,
        route_seed=route_seed,
        route_hash_count=route_hash_count,
    )
    return route_table_of(config)


def route_table_of(config: TRHashEngineConfig) -> RouteTable:
    """The table `config` describes.

    Raises:
        ValueError: the strategy cannot serve these sizes.
    """
    request = RouteRequest(
        config.vocab_size, config.num_experts, config.top_k, config.layer_index, config.route_seed, config.route_hash_count
    )
    return RouteTable(BUILDERS[config.routing_strategy](request), config.num_experts)


def _checked(experts: torch.Tensor | NDArray[np.integer] | Sequence[Sequence[int]], num_experts: int) -> Experts:
    """The ids as read-only bytes of their own."""
    if isinstance(experts, torch.Tensor):
        if experts.is_meta:
            raise ValueError("a route table on the meta device has no content; give one with data")
        experts = experts.detach().cpu().numpy()
    ids = np.asarray(experts)
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"route_table must hold integers, got {ids.dtype}")
    if ids.ndim != 2 or not ids.size:
        raise ValueError(f"route_table must be [route position, token id] and not empty, got shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= num_experts:
        position, token = np.argwhere((ids < 0) | (ids >= num_experts))[0].tolist()
        raise ValueError(
            f"route_table contains an out-of-range expert index: {ids[position, token]} at route position {position} of token "
            f"{token}, with experts 0..{num_experts - 1}"
        )
    table = np.array(ids, dtype=np.uint8, order="C")
    for one in range(len(table)):
        for other in range(one):
            if (same := table[one] == table[other]).any():
                token = int(same.argmax())
                raise ValueError(
                    f"routes must select distinct experts: token {token} has expert {table[one, token]} in route positions "
                    f"{other} and {one}"
                )
    table.flags.writeable = False
    return table
