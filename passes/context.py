"""What passes share: facts cached by structural hash, fuel, and progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import nn

from ..analysis.consumers import Consumers, analyze_consumers
from ..analysis.dependence import analyze_program
from ..analysis.facts import Facts
from ..analysis.program import Program
from .outcome import Outcome
from .rewrite import Rewrite
from .structure import structural_hash
from .tabulate import Progress, silent


class Fuel:
    """A maximum number of rewrites, so that a wrong result is bisected by a loop over it.

    Args:
        limit: rewrites allowed; None for any number.

    Raises:
        ValueError: a negative limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"fuel must not be negative, got {limit}")
        self._limit = limit
        self.used = 0

    @property
    def left(self) -> bool:
        return self._limit is None or self.used < self._limit

    def take(self) -> None:
        """Use up one rewrite."""
        self.used += 1


@dataclass
class PassContext:
    """Handed to every pass of one pipeline run.

    Attributes:
        fuel: shared by all passes.
        progress: called during long work.
        model: the captured model, and `owner` a model that encloses it, for whoever holds state outside the graph.
    """

    fuel: Fuel = field(default_factory=Fuel)
    progress: Progress = silent
    model: nn.Module | None = None
    owner: nn.Module | None = None
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
