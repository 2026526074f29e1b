"""Kernel providers: who computes a semantic node, and why not the others.

Providers are asked in order; each claims a node or declines it with a reason. The reference provider is last, claims
everything and yields plain ATen, so nothing semantic is left in a lowered graph unless a provider keeps it on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch.fx import GraphModule, Node

from ..errors import LoweringError


@dataclass(frozen=True)
class Declined:
    """Why a provider does not take a node."""

    reason: str


@dataclass(frozen=True)
class Claim:
    """Which provider took a semantic node, and what those before it said.

    Attributes:
        node: the semantic node's name.
        provider: who took it.
        kernel: what it became, as text.
        declined: (provider, reason) of everyone asked before.
    """

    node: str
    provider: str
    kernel: str
    declined: tuple[tuple[str, str], ...] = ()


class Provider(Protocol):
    """Lowers semantic nodes."""

    name: str

    def lower(self, module: GraphModule, node: Node) -> str | Declined:
        """Replace `node` in `module` and return the kernel's name, or decline and leave the graph alone."""
        ...


def is_semantic(node: Node) -> bool:
    """A foldfx operation that a provider has yet to take."""
    return node.op == "call_function" and str(node.target).startswith("foldfx.")


def lower(module: GraphModule, providers: Sequence[Provider], *, required: str | None = None) -> list[Claim]:
    """Replace every semantic node of `module`, in place.

    Args:
        module: a graph with semantic nodes.
        providers: asked in this order.
        required: a provider that must take every node.

    Raises:
        LoweringError: nobody took a node, or not the required provider; raised before anything runs.
    """
    claims = []
    for node in [node for node in module.graph.nodes if is_semantic(node)]:
        claims.append(_claim(module, node, providers))
    if required is not None and (others := [claim for claim in claims if claim.provider != required]):
        raise LoweringError(f"provider {required!r} is required, but {others[0]}")
    module.graph.lint()
    module.recompile()
    return claims


def _claim(module: GraphModule, node: Node, providers: Sequence[Provider]) -> Claim:
    declined: list[tuple[str, str]] = []
    for provider in providers:
        answer = provider.lower(module, node)
        if isinstance(answer, str):
            return Claim(node.name, provider.name, answer, tuple(declined))
        declined.append((provider.name, answer.reason))
    raise LoweringError(f"no provider takes {node.format_node()}: {declined}")
