"""What a state dict says of a route table, checked before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .config import TRHashEngineConfig
from .pair_codes import pair_codes
from .route_table import RouteTable

ROUTE_TABLE = "route_table"
CODES, PAIRS = DERIVED = ("fused_route_codes", "fused_expert_pairs")


def checked_table(config: TRHashEngineConfig, table: RouteTable) -> RouteTable:
    """`table`, if it is one for a layer of these sizes.

    Raises:
        TypeError: it is no `RouteTable`.
        ValueError: another K, V or E.
    """
    if not isinstance(table, RouteTable):
        raise TypeError(
            f"routes must be a RouteTable, got a {type(table).__name__}; RouteTable(experts, num_experts) makes one"
        )
    found = table.top_k, table.vocab_size, table.num_experts
    expected = config.top_k, config.vocab_size, config.num_experts
    if found != expected:
        raise ValueError(f"route_table is for K, V, E = {found}, the layer has {expected}")
    return table


def derived_entries(table: RouteTable) -> dict[str, torch.Tensor]:
    """The entries that published checkpoints store beside the table."""
    codes, pairs = pair_codes(table)
    return {CODES: codes, PAIRS: pairs}


def stored_table(config: TRHashEngineConfig, state: Mapping[str, Any], prefix: str, current: RouteTable) -> RouteTable:
    """The table of a state dict, or `current` where it has none.

    Pair codes beside it must say the same routes. Where pairs have no codes (K ≠ 2 or E outside 2..8), what is stored
    under their names means nothing and is not read.

    Raises:
        TypeError, ValueError: a table that is not one for this layer, or codes that disagree with it.
    """
    table = current
    if prefix + ROUTE_TABLE in state:
        entry = _require_integers(ROUTE_TABLE, state[prefix + ROUTE_TABLE])
        table = checked_table(config, RouteTable(entry, config.num_experts))
    require_same_codes(table, {name: state[prefix + name] for name in DERIVED if prefix + name in state})
    return table


def require_same_codes(table: RouteTable, stored: Mapping[str, Any]) -> None:
    """Refuse pair codes that do not say a table's routes; see `stored_table`.

    Raises:
        TypeError, ValueError: the entry that holds no integers, or disagrees.
    """
    for name, derived in derived_entries(table).items():
        if name not in stored or not derived.numel():
            continue
        entry = _require_integers(name, stored[name])
        if entry.shape != derived.shape or not torch.equal(entry.cpu().to(torch.int64), derived.to(torch.int64)):
            raise ValueError(
                f"{name} disagrees with the route table {table!r}; one of them belongs to another checkpoint. Leave {name} "
                "out to have it derived"
            )


def _require_integers(name: str, entry: object) -> torch.Tensor:
    if not isinstance(entry, torch.Tensor):
        raise TypeError(f"{name} must hold integers, got {type(entry).__name__}")
    if entry.is_meta or entry.dtype == torch.bool or entry.dtype.is_floating_point or entry.dtype.is_complex:
        raise TypeError(f"{name} must hold integers, got {entry.dtype} on {entry.device}")
    return entry
