"""`foldfx::lookup`: the semantic node of a folded region. Rows of a table, selected by token ids.

The operation runs as it stands (its own reference); lowering replaces it by whatever kernel a provider offers.
"""

from __future__ import annotations

from typing import Any

import torch

BOUNDS = ("embedding", "index", "gather")
"""What ids outside the table do, named after the operation they were read with before the fold:
`embedding` raises IndexError, `index` wraps -V..-1 and raises IndexError beyond, `gather` raises RuntimeError."""


@torch.library.custom_op("foldfx::lookup", mutates_args=())
def lookup(table: torch.Tensor, ids: torch.Tensor, bounds: str) -> torch.Tensor:
    """Rows of `table`.

    Args:
        table: [V, W], any dtype.
        ids: any shape, int32 or int64, each in 0..V-1.
        bounds: one of `BOUNDS`.

    Returns:
        [*ids.shape, W], the table's dtype, memory of its own.

    Raises:
        IndexError, RuntimeError: an id outside the table, by `bounds`.
        ValueError: an unknown `bounds`.
    """
    if bounds == "embedding":
        return torch.embedding(table, ids)
    if bounds == "index":
        rows: torch.Tensor = torch.ops.aten.index.Tensor(table, [ids])
        return rows
    if bounds == "gather":
        rows = ids.to(torch.int64).reshape(-1, 1).expand(-1, table.shape[1])
        return torch.gather(table, 0, rows).reshape(*ids.shape, table.shape[1])
    raise ValueError(f"bounds must be one of {BOUNDS}, not {bounds!r}")


@lookup.register_fake
def _(table: torch.Tensor, ids: torch.Tensor, bounds: str) -> torch.Tensor:
    return table.new_empty((*ids.shape, table.shape[1]))


LOOKUP: Any = torch.ops.foldfx.lookup.default
