"""From token ids to expert ids, and what ids outside the vocabulary do."""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def require_integer_ids(token_ids: Tensor) -> None:
    """Refuse ids that are not integers.

    Raises:
        TypeError: bool or floating-point ids, which would be read as masks or truncated.
    """
    if token_ids.dtype not in INTEGERS:
        raise TypeError(f"token_ids must be one of {[str(each) for each in INTEGERS]}, got {token_ids.dtype}")


def require_in_range(token_ids: Tensor, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary; waits for the device.

    Raises:
        IndexError: an id outside 0..V-1, named with its place.
    """
    outside = ((token_ids < 0) | (token_ids.to(torch.int64) >= vocab_size)).nonzero()
    if len(outside):
        place = tuple(outside[0].tolist())
        raise IndexError(
            f"token id {int(token_ids[place])} at {list(place)} is outside 0..{vocab_size - 1}: the ids are of another "
            "vocabulary than the route table (out_of_range='clamp' routes them like the nearest id)"
        )


def routes_of(table: Tensor, token_ids: Tensor, out_of_range: str) -> Tensor:
    """Experts of each token.

    Args:
        table: uint8 [K, V].
        token_ids: integers [N].
        out_of_range: `clamp` or `error`.

    Returns:
        int64 [K, N].

    Raises:
        IndexError: under `error`, an id outside 0..V-1.
    """
    if out_of_range == "error":
        require_in_range(token_ids, table.shape[1])
    ids = token_ids.to(torch.int64).clamp(0, table.shape[1] - 1)
    return table.index_select(1, ids).to(torch.int64)
