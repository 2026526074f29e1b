"""Which tensors a caller can see stand on the same memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._torch import leaf_paths, tree_flatten
from ...runtime.overlap import Addresses

STATE = "the module's state"


@dataclass(frozen=True)
class _Place:
    """A tensor a caller can reach, by its addresses."""

    path: str
    at: Addresses
    returned: bool


def shared_memory(outputs: Any, inputs: Any, module: nn.Module) -> frozenset[tuple[str, str]]:
    """Pairs of places that share memory: outputs with each other, with inputs, and with the module's state.

    Args:
        outputs, inputs: trees of tensors.
        module: what was called.
    """
    places = [_place(f"output {path}", leaf, True) for path, leaf in _leaves(outputs)]
    places += [_place(f"input {path}", leaf, False) for path, leaf in _leaves(inputs)]
    places += [_place(STATE, tensor, False) for tensor in (*module.parameters(), *module.buffers()) if _has_memory(tensor)]
    found: set[tuple[str, str]] = set()
    active: list[_Place] = []
    for place in sorted(places, key=lambda each: (each.at.device, each.at.start)):
        active = [each for each in active if each.at.device == place.at.device and each.at.stop > place.at.start]
        pairs = [(each, place) if each.returned else (place, each) for each in active if each.returned or place.returned]
        found |= {_ordered(one, other) for one, other in pairs if one.at.overlap(other.at)}
        active.append(place)
    return frozenset(found)


def _ordered(one: _Place, other: _Place) -> tuple[str, str]:
    if one.returned and other.returned and other.path < one.path:
        return other.path, one.path
    return one.path, other.path


def _place(path: str, tensor: torch.Tensor, returned: bool) -> _Place:
    return _Place(path, Addresses.of(tensor), returned)


def _leaves(tree: Any) -> Iterable[tuple[str, torch.Tensor]]:
    pairs = zip(leaf_paths(tree), tree_flatten(tree)[0], strict=True)
    return [(path, leaf) for path, leaf in pairs if isinstance(leaf, torch.Tensor) and _has_memory(leaf)]


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta
