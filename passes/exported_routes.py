"""The routes of a folded program, read from its tables."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.fx import Node

from ..analysis.decisions import Decision, find_decisions
from ..analysis.provenance import where
from ..errors import RouteFileError
from ..runtime.route_file import RouteFile, Routes
from .fold_routes import FoldRoutes
from .pipeline import Run
from .rewrite import Tables
from .tables.encode import smallest_integer
from .tables.region import ancestors
from .tables.tabulate import tokens_of
from .verification.fragility import Fragility


def exported_routes(run: Run, fingerprint: str) -> RouteFile:
    """Every decision that the run folded into tables.

    Args:
        run: a run that was accepted.
        fingerprint: of the original model's state.

    Raises:
        RouteFileError: it folded none; the message says why not.
    """
    known = {each.decision.node.name: each for each in run.probes.fragilities}
    module = run.program.module
    tabulated = [tables for rewrite in run.rewrites for tables in rewrite.tables]
    routes = tuple(route for tables in tabulated for route in _routes(tables, module, known))
    if not routes:
        why = [str(each) for each in run.outcomes if each.pass_name == FoldRoutes.name]
        said = "; ".join(why) or "compile with objective='routes'"
        raise RouteFileError(f"no decision was folded: {said}")
    return RouteFile(routes, fingerprint)


def _routes(tables: Tables, module: nn.Module, known: dict[str, Fragility]) -> Iterator[Routes]:
    """The decisions among tabulated values whose margins are known."""
    region = tables.region
    decisions = [each for each in find_decisions(region.program, region.facts) if set(each.outcomes) & set(tables.values)]
    by_class = _by_class(tables, module) if decisions else {}
    for decision in decisions:
        found = known[decision.node.name]
        if len(region.inputs) > 1 or found.by_token is None:
            raise RouteFileError(f"{decision.node.name}: {found.note or f'it depends on several inputs, {region.name}'}")
        (chosen,) = [node for node in decision.outcomes if node in tables.values]
        ids = next(iter(tokens_of(region, torch.arange(region.domain)).values())).long()
        yield Routes(
            decision.node.name,
            where(decision.node),
            _narrowed(by_class[chosen]),
            {node.name: by_class[node] for node in _weights(decision, tables)},
            found.by_token,
            ids[found.by_token <= found.floor],
            None if region.domains[0].is_prefix else ids,
            str(tables.classes or ""),
        )


def _weights(decision: Decision, tables: Tables) -> list[Node]:
    floats = [node for node in tables.values if node.meta["val"].is_floating_point()]
    return [node for node in floats if decision.node in ancestors([node])]


def _narrowed(experts: torch.Tensor) -> torch.Tensor:
    return experts.to(smallest_integer(int(experts.min()), int(experts.max()))) if experts.numel() else experts


def _by_class(tables: Tables, module: nn.Module) -> dict[Node, torch.Tensor]:
    """Each value for every token, [classes, width, rows]."""
    rows = torch.arange(tables.region.domain)
    count = 1 if tables.classes is None else len(tables.classes.built)
    found: dict[Node, list[torch.Tensor]] = {node: [] for node in tables.values}
    for number in range(count):
        for pack in tables.packs:
            for node, table in pack.decode(module, rows, torch.full_like(rows, number)).items():
                found[node].append(table.t())
    return {node: torch.stack(each) for node, each in found.items()}
