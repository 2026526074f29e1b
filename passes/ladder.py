"""The ladder of a pass that tabulates: one table; where that is found wrong, one for each execution class; then a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from .._torch import unforeseen
from ..analysis.decisions import find_decisions
from ..analysis.program import Program
from .choose import Choice
from .context import PassContext
from .outcome import Outcome, Status
from .rewrite import Rewrite, Tables
from .shape_profiles import Profile, as_profiles, as_stated, discover
from .structure import structural_hash
from .sweep import sweep
from .tables.encode import encode
from .tables.region import Region, ancestors
from .tables.row_classes import RowClasses
from .tables.splice import splice
from .tables.tabulate import tabulate

TABLES = "foldfx_tables"

BY_CLASS = ", by execution class"
"""Ends the names of rewrites with a table for each execution class."""

Applied = tuple[Program, Outcome, Rewrite | None]
"""The program to go on with, how it ended, and the rewrite where there is one."""


@dataclass(frozen=True)
class Built:
    """A copy of a program in which values are looked up.

    Attributes:
        copy: the program, without what nobody needs any more.
        tables: what was tabulated, by index.
        table_bytes: bytes of all tables.
        removed: names of the state that left.
    """

    copy: Program
    tables: tuple[Tables, ...]
    table_bytes: int
    removed: tuple[str, ...]

    @property
    def rules(self) -> list[str]:
        """The rules of execution classes, in words."""
        return [str(each.classes) for each in self.tables if each.classes is not None]


@dataclass(frozen=True)
class Ladder:
    """What passes that tabulate have in common.

    Attributes:
        pass_name: the pass.
        profiles: execution classes as the user states them; None: one table, and where that is found wrong, one for
            each execution class that `shape_profiles` discovers.
    """

    pass_name: str
    profiles: tuple[Profile, ...] | None = None

    @staticmethod
    def of(pass_name: str, max_table_bytes: int | None, profiles: Sequence[Profile | Mapping[str, int]] | None) -> Ladder:
        """That of a pass with these arguments.

        Raises:
            ValueError: a negative budget, or malformed profiles.
        """
        if max_table_bytes is not None and max_table_bytes < 0:
            raise ValueError(f"max_table_bytes must not be negative, got {max_table_bytes}")
        return Ladder(pass_name, None if profiles is None else as_profiles(profiles))

    def climb(
        self,
        program: Program,
        parts: Sequence[Sequence[str]],
        context: PassContext,
        choose: Callable[[Program, PassContext], Choice],
        apply: Callable[[Choice, Sequence[Node], PassContext, str], Applied],
    ) -> tuple[Program, list[Outcome], list[Rewrite]]:
        """Apply the first rung of each part that is not known to be wrong, if there is fuel.

        Args:
            program: what to begin with.
            parts: names of the values tabulated together.
            context: the run's.
            choose: the choice for a program.
            apply: applies a rung, by the name of its rewrite.
        """
        outcomes: list[Outcome] = []
        rewrites: list[Rewrite] = []
        for part in parts:
            choice = choose(program, context)
            nodes = [choice.facts.node(name) for name in part]
            names = self._rungs(part)
            wrong = [name for name in names if name in context.fuel.left_out]
            outcomes += [self.end(choice, nodes, Status.REJECTED, context.fuel.left_out[name]) for name in wrong]
            if len(wrong) == len(names):
                continue
            rung = next(name for name in names if name not in wrong)
            if not context.fuel.admits(rung):
                reason = "out of fuel: the maximum number of rewrites is used up"
                outcomes.append(self.end(choice, nodes, Status.REFUSED, reason))
                continue
            program, outcome, rewrite = apply(choice, nodes, context, rung)
            outcomes.append(outcome)
            rewrites += [rewrite] if rewrite else []
        return program, outcomes, rewrites

    def _rungs(self, part: Sequence[str]) -> list[str]:
        name = f"{self.pass_name}: {', '.join(part)}"
        return [name + rung for rung in (("", BY_CLASS) if self.profiles is None else (BY_CLASS,))]

    def end(
        self,
        choice: Choice,
        part: Sequence[Node],
        status: Status,
        reason: str,
        figures: Mapping[str, Any] = MappingProxyType({}),
    ) -> Outcome:
        """How it ended for a part of the choice."""
        names = tuple(node.name for node in part)
        inputs = sorted({name for node in part for name in choice.facts[node].tokens})
        subject = f"token input {', '.join(inputs)}, values {', '.join(names)}"
        return Outcome(self.pass_name, status, subject, reason, names, figures)

    def build(self, choice: Choice, nodes: Sequence[Node], context: PassContext, rung: str) -> Built:
        """Tabulate `nodes` as the rung says, on a copy of the program.

        Raises:
            RegionError: they cannot be tabulated, or not by execution class.
        """
        copy = choice.program.copy()
        tables: list[Tables] = []
        held = _state_bytes(copy)
        for group in _by_index(choice, nodes):
            region = choice.region_of(group[0])
            bounds = region.bounds(group)
            alone = [node for node in group if node in choice.escaping]
            classes, filled = self._filled(region, group, alone, context, rung.endswith(BY_CLASS))
            prefix = f"{TABLES}.{'_'.join(node.name for node in region.inputs)}"
            first, *others = [dict(zip(group, each, strict=True)) for each in filled]
            encoded = encode(first, prefix, alone, others)
            splice(copy.module, region, encoded, bounds, self.pass_name, prefix, classes)
            tables.append(Tables(region, tuple(encoded.packs), bounds, classes))
        table_bytes = _state_bytes(copy) - held
        copied = {node.name: node for node in copy.graph.nodes}
        removed = sweep(copy.module, [copied[node.name] for node in nodes], choice.consumers.pinned)
        copy.module.recompile()
        return Built(copy, tuple(tables), table_bytes, tuple(removed))

    def _filled(
        self, region: Region, group: Sequence[Node], alone: Sequence[Node], context: PassContext, by_class: bool
    ) -> tuple[RowClasses | None, list[list[torch.Tensor]]]:
        """The tables of a group, for each execution class if there are several; built once for attempts on one program.

        Thousands of small calls of the region, which writes nothing: they need not be foreseen.
        """
        with unforeseen():
            return self._built(region, group, alone, context, by_class)

    def _built(
        self, region: Region, group: Sequence[Node], alone: Sequence[Node], context: PassContext, by_class: bool
    ) -> tuple[RowClasses | None, list[list[torch.Tensor]]]:
        context.held.append(region.program)
        key = (structural_hash(region.program.module), *(node.name for node in group))
        if key not in context.tabulated:
            context.tabulated[key] = tabulate(region, group, context.progress, alone)
        bulk = context.tabulated[key]
        if not by_class:
            return None, [bulk]
        if (key, self.profiles) not in context.classed:
            context.classed[key, self.profiles] = (
                self._discovered(region, group, bulk, context)
                if self.profiles is None
                else as_stated(region, group, bulk, self.profiles)
            )
        return context.classed[key, self.profiles]

    def _discovered(
        self, region: Region, group: Sequence[Node], bulk: list[torch.Tensor], context: PassContext
    ) -> tuple[RowClasses, list[list[torch.Tensor]]]:
        """Measured on the scores as well, where `group` holds what is decided by them: few ids are near a tie."""
        behind = ancestors(group)
        decisions = [each for each in find_decisions(region.program, region.facts) if each.node in behind]
        scores = [score for score in dict.fromkeys(each.score for each in decisions) if score not in group]
        scored = tabulate(region, scores, context.progress, scores) if scores else []
        classes, tables = discover(region, [*group, *scores], [*bulk, *scored], context.progress)
        return classes, [each[: len(group)] for each in tables]


def _state_bytes(program: Program) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in program.module.state_dict().values())


def _by_index(choice: Choice, nodes: Sequence[Node]) -> list[list[Node]]:
    """`nodes` by the row index they are looked up with: token inputs, its layout, and what ids outside it do."""
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        region = choice.region_of(node)
        key = (tuple(choice.facts[node].tokens), region.index_rows(node), region.bounds([node]))
        groups.setdefault(key, []).append(node)
    return list(groups.values())
