"""The integer hash and the permutations that route tables are made from.

Everything counts modulo 2³². The permutation is the Fisher-Yates shuffle that torch's CPU `randperm` draws from a
Mersenne Twister; it is computed here from NumPy's frozen `RandomState` stream, so that neither a torch version nor an
enclosing `torch.device` or fake mode changes a table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B1
CHANNEL = 0x85EBCA77
EXPERT = 0xC2B2AE3D
LAYER_STEP = 104_729
BLOCK = 192  # exchanges at once; few blocks of this size have partners in common

Words = NDArray[np.uint32]


def word(value: int) -> np.uint32:
    """An integer modulo 2³²."""
    return np.uint32(value & MASK)


def mix32(values: Words) -> Words:
    """A bijection of 32-bit words with good avalanche (the constants of lowbias32), elementwise.

    Args:
        values: any shape, uint32; left as they are.
    """
    mixed = values ^ (values >> np.uint32(16))
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def layer_salt(seed: int, layer_index: int) -> int:
    """seed + layer · 0x9E3779B1, modulo 2³²."""
    return (seed + layer_index * GOLDEN) & MASK


def layer_permutation(size: int, layer_index: int, seed: int) -> NDArray[np.int64]:
    """A permutation of 0..size-1 for this layer, as `torch.randperm` gives for seed + 104729 · layer."""
    return permutation(size, seed + LAYER_STEP * layer_index)


def permutation(size: int, seed: int) -> NDArray[np.int64]:
    """A permutation of 0..size-1, int64 [size]: place i is exchanged with a drawn one of i..size-1, for i from 0 up.

    Exchanges whose partners lie beyond the block and differ commute, so such blocks are exchanged at once.
    """
    draws = np.random.RandomState(seed & MASK).randint(0, MASK + 1, size=max(size - 1, 0), dtype=np.uint32)
    partners = np.arange(size - 1) + draws % np.arange(size, 1, -1)
    order = np.arange(size)
    for first in range(0, size - 1, BLOCK):
        chosen = partners[first : first + BLOCK]
        last = first + len(chosen)
        ascending = np.sort(chosen)
        if ascending[0] >= last and (ascending[1:] != ascending[:-1]).all():
            kept = order[first:last].copy()
            order[first:last] = order[chosen]
            order[chosen] = kept
        else:
            for place, partner in enumerate(chosen.tolist(), first):
                order[place], order[partner] = order[partner], order[place]
    return order
