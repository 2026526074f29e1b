"""Running a layer with the first experts and the first columns of each alone."""

from __future__ import annotations

from typing import NamedTuple

from .config import TRHashEngineConfig, TRHashStrategy
from .route_table import RouteTable, route_table_of

SMALLEST_HIERARCHY = 4


class Capacity(NamedTuple):
    """Experts and columns in use.

    Attributes:
        num_experts: the first so many of E.
        expert_width: the first so many of W.
    """

    num_experts: int
    expert_width: int


def checked_capacity(config: TRHashEngineConfig, num_experts: int, expert_width: int) -> Capacity:
    """A capacity that `config` allows.

    Raises:
        TypeError: not ints.
        ValueError: more than is allocated, an unsupported count, or fewer experts than top_k.
    """
    for name, asked in (("num_experts", num_experts), ("expert_width", expert_width)):
        allocated = getattr(config, name)
        if type(asked) is int and asked > allocated:
            raise ValueError(f"active {name} ({asked}) cannot exceed the allocated capacity ({allocated})")
    reduced = config.replaced(num_experts=num_experts, expert_width=expert_width)
    return Capacity(reduced.num_experts, reduced.expert_width)


def reduced_routes(config: TRHashEngineConfig, full: RouteTable, num_experts: int) -> RouteTable:
    """The table of fewer experts, as the strategy builds it for that many.

    A hierarchy has four experts at least; below, it is its own parent level, the balanced hash.

    Args:
        config: of the full layer.
        full: the layer's table.

    Raises:
        ValueError: `full` is not the table `config` builds (it was loaded or converted), so none can be derived.
    """
    if full != route_table_of(config):
        raise ValueError(
            f"the route table ({full!r}) is not the one that {config.routing_strategy} builds, so foldfx does not know how it "
            f"routes among {num_experts} experts; pass routes=RouteTable(…, {num_experts})"
        )
    strategy = config.routing_strategy
    if strategy is TRHashStrategy.HIERARCHICAL_HASH and num_experts < SMALLEST_HIERARCHY:
        strategy = TRHashStrategy.BALANCED_HASH
    return route_table_of(config.replaced(num_experts=num_experts, routing_strategy=strategy))
