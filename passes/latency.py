"""The latency objective: the least work a token within a budget of table bytes, and the measurement that decides."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ..analysis.example import Example
from ..analysis.facts import Facts
from ..analysis.rows import is_static
from .cut import Candidate, Cut, cheapest_cut
from .tables.region import moved

aten = torch.ops.aten

_CONTRACTIONS = (
    aten.linear.default,
    aten.matmul.default,
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.mv.default,
    aten.einsum.default,
    aten.conv1d.default,
    aten.conv2d.default,
)
WARM_UP, LEAST_ROUNDS, SECONDS = 3, 15, 1.0


def work(node: Node, facts: Facts) -> int:
    """Bytes read plus floating-point operations to compute a value for one token.

    A product with stored factors reads them and costs a multiplication and an addition an element; a table read costs
    its row; anything else costs one operation an element of the row. Rearrangements are free.
    """
    if node.op == "placeholder" or moved(node) is not None or not isinstance(node.meta["val"], torch.Tensor):
        return 0
    if node.target not in _CONTRACTIONS:
        return row_bytes_of(node, facts)
    return sum(_elements(each, facts) * (2 + each.meta["val"].element_size()) for each in _stored_factors(node, facts))


def multiply_adds(node: Node, facts: Facts) -> int:
    """Multiplications with stored matrices that computing a value for one token takes."""
    factors = _stored_factors(node, facts) if node.target in _CONTRACTIONS else []
    return sum(_elements(each, facts) for each in factors if each.meta["val"].dim() > 1)


def _stored_factors(node: Node, facts: Facts) -> list[Node]:
    return [o for o in node.all_input_nodes if facts[o].constant and isinstance(o.meta.get("val"), torch.Tensor)]


def row_bytes_of(node: Node, facts: Facts) -> int:
    """Bytes of a value for one token."""
    return _elements(node, facts) * int(node.meta["val"].element_size()) if facts[node].rows is not None else 0


def _elements(node: Node, facts: Facts) -> int:
    """Of a value for one token; sizes of the inputs are no matter, and none is fixed by asking for it."""
    return prod(int(atom.size) for dim in facts[node].rows or () for atom in dim if is_static(atom))


def fastest_cut(
    candidates: Sequence[Candidate], row_bytes: Mapping[Any, int], work_of: Mapping[Any, int], max_table_bytes: int
) -> Cut:
    """The choice with the least work a token whose tables fit the budget.

    The budget enters with a price per byte, the smallest at which the tables fit (found by bisection): the result is
    optimal among the choices on the lower convex hull of (table bytes, work).

    Args:
        candidates: the values, with the bytes of their tables.
        row_bytes: what looking a value up reads, by name.
        work_of: what computing it takes, by name.
        max_table_bytes: the budget.

    Raises:
        ValueError: a negative budget.
    """
    if max_table_bytes < 0:
        raise ValueError(f"max_table_bytes must not be negative, got {max_table_bytes}")
    table_bytes = {candidate.name: candidate.table or 0 for candidate in candidates}

    def cut(price: int) -> Cut:
        priced = [
            value if value.given else _priced(value, row_bytes[value.name], work_of[value.name], price) for value in candidates
        ]
        return cheapest_cut(priced, {})

    def fits(found: Cut) -> bool:
        return sum(table_bytes[name] for name in found.tables) <= max_table_bytes

    low, high = 0, 1
    found = cut(low)
    if fits(found):
        return found
    while not fits(found := cut(high)):
        low, high = high, high * 16
    while high - low > max(low >> 6, 1):
        middle = (low + high) // 2
        trial = cut(middle)
        low, high, found = (low, middle, trial) if fits(trial) else (middle, high, found)
    return found


def _priced(value: Candidate, row_bytes: int, work: int, price: int) -> Candidate:
    """The value with its costs a token, scaled so that the price of a byte of table can be a small integer."""
    table = None if value.table is None else (row_bytes << 20) + price * value.table
    return replace(value, table=table, weights=(), online=work << 20)


@dataclass(frozen=True)
class Timing:
    """Medians of interleaved calls over all examples.

    Attributes:
        before, after: seconds a round.
        rounds: how many rounds each side ran.
    """

    before: float
    after: float
    rounds: int

    @property
    def faster(self) -> bool:
        return self.after < self.before

    def __str__(self) -> str:
        return (
            f"{self.before * 1e6:,.1f} µs → {self.after * 1e6:,.1f} µs a round of all examples "
            f"({self.before / self.after:.2f}×, median of {self.rounds} interleaved rounds, {torch.get_num_threads()} threads)"
        )


def measure_side_by_side(before: nn.Module, after: nn.Module, examples: Sequence[Example]) -> Timing:
    """Time two modules in one process, turn by turn, on the same examples."""
    times: tuple[list[float], list[float]] = ([], [])
    calls = [example.cloned() for example in examples]
    began = time.perf_counter()
    with torch.no_grad():
        for number in range(10_000):
            for side, module in enumerate((before, after) if number % 2 else (after, before)):
                start = time.perf_counter()
                for call in calls:
                    module(*call.args, **call.kwargs)
                if number >= WARM_UP:
                    times[side if number % 2 else 1 - side].append(time.perf_counter() - start)
            if number >= WARM_UP + LEAST_ROUNDS and time.perf_counter() - began > SECONDS:
                break
    return Timing(median(times[0]), median(times[1]), len(times[0]))
