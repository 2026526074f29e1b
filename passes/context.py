"""What passes share: facts cached by structural hash, fuel, and progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import nn

from ..analysis.consumers import Consumers, analyze_consumers
from ..analysis.dependence import analyze_program
from ..analysis.facts import Facts
from ..analysis.program import Program
from .outcome import Outcome
from .rewrite import Rewrite
from .structure import structural_hash
from .tables.row_classes import RowClasses
from .tables.tabulate import Progress, silent


class Fuel:
    """Which rewrites may be applied: a maximum number, less those left out by name, or just those of a bisection.

    With it a wrong result is bisected by a loop.

    Args:
        limit: rewrites allowed; None for any number.
        left_out: names of rewrites found wrong, each with the reason.
        only: names of the rewrites allowed; None for any.

    Attributes:
        log: the rewrites applied, by name, in order.

    Raises:
        ValueError: a negative limit.
    """

    def __init__(
        self,
        limit: int | None = None,
        left_out: Mapping[str, str] = MappingProxyType({}),
        only: Collection[str] | None = None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"fuel must not be negative, got {limit}")
        self._limit = limit
        self._only = only
        self.left_out = dict(left_out)
        self.log: list[str] = []

    def admits(self, rewrite: str) -> bool:
        """Whether this rewrite may be applied now; ask before working on it."""
        if rewrite in self.left_out or (self._only is not None and rewrite not in self._only):
            return False
        return self._limit is None or len(self.log) < self._limit

    def take(self, rewrite: str) -> None:
        """Record that it was applied."""
        self.log.append(rewrite)


@dataclass
class PassContext:
    """Handed to every pass of one pipeline run.

    Attributes:
        fuel: shared by all passes.
        progress: called during long work.
        model: the captured model, and `owner` a model that encloses it, for whoever holds state outside the graph.
        tabulated: tables built so far, by the structural hash of their program and the names of their values; runs of
            one program may share it.
        classed: execution classes found or stated so far, with the tables of each, likewise; by the profiles, too.
        held: the programs whose hashes those are, which name tensors by their addresses.
    """

    fuel: Fuel = field(default_factory=Fuel)
    progress: Progress = silent
    model: nn.Module | None = None
    owner: nn.Module | None = None
    tabulated: dict[tuple[str, ...], list[torch.Tensor]] = field(default_factory=dict)
    classed: dict[object, tuple[RowClasses, list[list[torch.Tensor]]]] = field(default_factory=dict)
    held: list[Program] = field(default_factory=list)
    _cached: tuple[str, Program, Facts] | None = None

    def facts(self, program: Program) -> Facts:
        """The dependence facts of `program`; computed once for each graph, dropped when the graph changes."""
        key = structural_hash(program.module)
        if self._cached is None or self._cached[0] != key or self._cached[1] is not program:
            self._cached = key, program, analyze_program(program)
        return self._cached[2]

    def consumers(self, program: Program) -> Consumers:
        """Readers and holders of the state of `program`."""
        return analyze_consumers(program, self.owner, self.model)


@dataclass(frozen=True)
class PassResult:
    """What a pass hands back: the program to go on with, what happened, and what it rewrote."""

    program: Program
    outcomes: tuple[Outcome, ...]
    rewrites: tuple[Rewrite, ...] = ()


class Pass(Protocol):
    """A graph pass.

    It receives a working copy and may edit its graph and add state; it must not write the storage of any tensor it
    finds. `name` is what users disable it by.
    """

    name: ClassVar[str]

    def run(self, program: Program, context: PassContext) -> PassResult:
        """Rewrite `program` (a working copy) and say what was done."""
        ...
