"""Which values are token-only, whatever the analysis says: found by changing one id at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from foldfx import Program

from .attack import Inputs, Recorder

BASES = 3
Position = tuple[int, ...]


@dataclass
class Influence:
    """For one shape of inputs: what every single id changes, and the values in unrelated calls."""

    calls: list[Inputs]
    runs: list[dict[Node, Tensor]]
    changed: dict[Node, dict[tuple[str, Position], Tensor]]


def observe(
    program: Program, nodes: Sequence[Node], bases: Sequence[Inputs], others: Sequence[Inputs], sizes: dict[str, int]
) -> Influence:
    """Run everything. `sizes` are the vocabularies of the token inputs."""
    recorder = Recorder(program.module)
    state = {name: tensor.clone() for name, tensor in program.module.named_buffers()}

    def run(inputs: Inputs) -> dict[Node, Tensor]:
        with torch.no_grad():
            for name, tensor in state.items():
                program.module.get_buffer(name).copy_(tensor)
        seen = recorder.values({name: value.clone() for name, value in inputs.items()})
        return {node: seen[node].double().flatten() for node in nodes}

    runs = [run(inputs) for inputs in [*bases, *others]]
    changed: dict[Node, dict[tuple[str, Position], Tensor]] = {node: {} for node in nodes}
    for inputs, before in zip(bases, runs, strict=False):
        for name, size in sizes.items():
            for position in map(
                tuple, torch.cartesian_prod(*map(torch.arange, inputs[name].shape)).view(-1, inputs[name].dim()).tolist()
            ):
                ids = inputs[name].clone()
                ids[position] = (ids[position] + torch.randint(1, size, ())) % size
                after = run({**inputs, name: ids})
                for node in nodes:
                    largest = before[node].abs().max() if before[node].numel() else 0.0
                    differs = (before[node] - after[node]).abs() > 1e-9 * largest
                    seen = changed[node].get((name, position))
                    changed[node][name, position] = differs if seen is None else seen | differs
    return Influence([*bases, *others], runs, changed)


def token_only(node: Node, observed: Sequence[Influence], relative: float) -> bool:
    """Whether the value is, over everything observed, one function of the ids at one position of each input."""
    table: dict[tuple[int, ...], float] = {}
    for influence in observed:
        reading = _reading(influence.changed[node])
        if reading is None:
            return False
        for inputs, run in zip(influence.calls, influence.runs, strict=True):
            value = run[node]
            scale = relative * float(value.abs().max())
            for place, (feature, rows) in reading.items():
                key = (feature, *(int(inputs[name][position]) for name, position in rows))
                if abs(table.setdefault(key, float(value[place])) - float(value[place])) > scale:
                    return False
    features = {key[0] for key in table}
    return len(features) * 2 <= len(table)


def _reading(changed: dict[tuple[str, Position], Tensor]) -> dict[int, tuple[int, tuple[tuple[str, Position], ...]]] | None:
    """For each element that varies: its feature, and the position of each input it reads; None where that is not one each.

    Every position has equally many elements, in the order of the positions, and what never varies is as much of each
    position: padding along the positions belongs to none, and where it stands depends on how many there are.
    """
    names = [
        name
        for name in dict.fromkeys(name for name, _ in changed)
        if any(d.any() for (n, _), d in changed.items() if n == name)
    ]
    if not names:
        return None
    found: dict[tuple[tuple[str, Position], ...], list[int]] = {}
    rows: dict[int, list[tuple[str, Position]]] = {}
    for pair, differs in changed.items():
        for place in differs.nonzero().flatten().tolist():
            rows.setdefault(place, []).append(pair)
    for place in sorted(rows):
        if [name for name, _ in rows[place]] != names:
            return None
        found.setdefault(tuple(rows[place]), []).append(place)
    positions = {pair for pair in changed if pair[0] in names}
    if len({len(places) for places in found.values()}) != 1 or {pair for key in found for pair in key} != positions:
        return None
    if not all(_ordered([(dict(key)[name], places[0]) for key, places in found.items()]) for name in names):
        return None
    firsts = sorted(places[0] for places in found.values())
    constant = set(range(next(iter(changed.values())).numel())) - set(rows)
    if not _tiled(constant, [first - firsts[0] for first in firsts]):
        return None
    return {place: (number, key) for key, places in found.items() for number, place in enumerate(places)}


def _tiled(places: set[int], steps: Sequence[int]) -> bool:
    """Whether `places` are shifted copies of `steps`, which begin with 0, without overlap."""
    left = sorted(places, reverse=True)
    while places:
        start = left.pop()
        if start in places:
            copy = {start + step for step in steps}
            if not copy <= places:
                return False
            places = places - copy
    return True


def _ordered(firsts: Sequence[tuple[Position, int]]) -> bool:
    """Whether along every dimension of the ids a later position comes later in the value."""
    first: dict[Position, int] = {}
    for position, place in firsts:
        first[position] = min(place, first.get(position, place))
    return all(
        first[position[:dim] + (position[dim] - 1,) + position[dim + 1 :]] < place
        for position, place in first.items()
        for dim in range(len(position))
        if position[dim] > 0
    )
