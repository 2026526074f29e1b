"""What a route file holds, for people and for machines."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..runtime.route_file import RouteFile, Routes

NAMED = 8
"""Fragile tokens that are named, at most."""


def route_text(file: RouteFile) -> str:
    """A few lines for each decision."""
    lines = [f"routes of {len(file.routes)} decision(s), torch {file.torch_version}, {file.threads} thread(s)"]
    lines.append(f"model state sha256 {file.fingerprint}")
    for each in file.routes:
        classes, chosen, tokens = each.experts.shape
        rule = f", {classes} execution classes ({each.rule})" if each.rule else ""
        lines.append(f"{each.name} ({each.at}): {chosen} expert(s) for each of {tokens:,} tokens, {each.experts.dtype}{rule}")
        lines.append(f"  tokens of expert 0, 1, …: {', '.join(f'{count:,}' for count in _occupancy(each))}")
        lines += [f"  weights {name}: {list(weights.shape[1:])} {weights.dtype}" for name, weights in each.weights.items()]
        named = ", ".join(map(str, each.fragile[:NAMED].tolist())) + (", …" if each.fragile.numel() > NAMED else "")
        smallest = f"smallest margin {float(each.margins.min()):.2e}" if tokens else "no tokens"
        lines.append(f"  {smallest}, {each.fragile.numel():,} fragile token(s){': ' if named else ''}{named}")
    return "\n".join(lines)


def routes_to_dict(file: RouteFile) -> dict[str, Any]:
    """JSON-serialisable; without the tables themselves."""
    return {
        "fingerprint": file.fingerprint,
        "torch": file.torch_version,
        "threads": file.threads,
        "routes": [_to_dict(each) for each in file.routes],
    }


def _to_dict(routes: Routes) -> dict[str, Any]:
    smallest = float(routes.margins.min()) if routes.margins.numel() else math.inf
    return {
        "name": routes.name,
        "at": routes.at,
        "experts": list(routes.experts.shape),
        "dtype": str(routes.experts.dtype),
        "occupancy": _occupancy(routes),
        "weights": {name: list(weights.shape) for name, weights in routes.weights.items()},
        "rule": routes.rule,
        "smallest_margin": smallest if math.isfinite(smallest) else None,
        "fragile": routes.fragile.tolist(),
    }


def _occupancy(routes: Routes) -> list[int]:
    """How many tokens choose each expert, in bulk calls."""
    counts: list[int] = torch.bincount(routes.experts[0].reshape(-1).long()).tolist()
    return counts
