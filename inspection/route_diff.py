"""Two route files compared: which tokens take other experts, and how far weights are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..runtime.route_file import RouteFile, Routes

NAMED = 8
"""Tokens that are named, at most."""


@dataclass(frozen=True)
class RouteDifference:
    """How two tables of one decision differ.

    Attributes:
        name: the decision.
        problem: why they cannot be compared, or "".
        sets: ids of tokens for which other experts are chosen, in some class.
        orders: ids of tokens for which the same are chosen, in another order.
        weights: the largest difference of any weight; infinite where one file has weights the other lacks.
    """

    name: str
    problem: str = ""
    sets: tuple[int, ...] = ()
    orders: tuple[int, ...] = ()
    weights: float = 0.0

    @property
    def equal(self) -> bool:
        return not (self.problem or self.sets or self.orders or self.weights)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "equal": self.equal,
            "problem": self.problem,
            "sets": list(self.sets),
            "orders": list(self.orders),
            "weights": self.weights if self.weights != torch.inf else None,
        }

    def __str__(self) -> str:
        if self.equal:
            return f"{self.name}: equal"
        parts = [self.problem] if self.problem else []
        for tokens, what in ((self.sets, "choose other experts"), (self.orders, "choose the same in another order")):
            if tokens:
                more = ", …" if len(tokens) > NAMED else ""
                parts.append(f"{len(tokens):,} tokens {what}: {', '.join(map(str, tokens[:NAMED]))}{more}")
        if self.weights:
            parts.append(f"weights differ by up to {self.weights:.2e}")
        return f"{self.name}: {'; '.join(parts)}"


def compare_routes(one: RouteFile, other: RouteFile) -> list[RouteDifference]:
    """One difference for each decision of either file, in the order of the first; matched by name."""
    twins = {each.name: each for each in other.routes}
    found = [_compare(each, twins.pop(each.name, None)) for each in one.routes]
    return [*found, *(RouteDifference(name, "only in the second file") for name in twins)]


def _compare(one: Routes, other: Routes | None) -> RouteDifference:
    if other is None:
        return RouteDifference(one.name, "only in the first file")
    if not torch.equal(one.tokens(), other.tokens()):
        return RouteDifference(one.name, f"over {one.margins.numel():,} and {other.margins.numel():,} token ids, not the same")
    if one.experts.shape != other.experts.shape or one.rule != other.rule:
        shapes = (
            f"{list(one.experts.shape)} ({one.rule or 'one class'}), {list(other.experts.shape)} ({other.rule or 'one class'})"
        )
        return RouteDifference(one.name, f"tables of different classes or numbers of experts: {shapes}")
    mine, theirs = one.experts.long(), other.experts.long()
    ordered = (mine != theirs).flatten(0, 1).any(0)
    sets = (mine.sort(1).values != theirs.sort(1).values).flatten(0, 1).any(0)
    tokens = one.tokens()
    return RouteDifference(
        one.name, "", tuple(tokens[sets].tolist()), tuple(tokens[ordered & ~sets].tolist()), _apart(one, other)
    )


def _apart(one: Routes, other: Routes) -> float:
    if one.weights.keys() != other.weights.keys():
        return float("inf")
    pairs = [(one.weights[name], other.weights[name]) for name in one.weights]
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()), default=0.0)
