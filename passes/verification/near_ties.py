"""A bounded, seeded search for calls in which contextual decisions are near a tie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch.fx import Interpreter

from ..._torch import flatten_inputs, size_expression, static_size
from ...analysis.decisions import Decision
from ...analysis.example import Example
from ...analysis.program import Program
from ..tables.tabulate import Progress
from .margins import Margins
from .subgraphs import part
from .variants import resized, with_tokens

BATCH = 64
"""Contexts that are evaluated in one call."""

KEPT = 256
"""Contexts with the smallest margins that are kept for each decision."""

CLIMBED = 8
"""Contexts among them that are improved in turn."""

TRIED = 4
"""Contexts that are evaluated together and alone, to see whether calls can be shared."""

LARGEST_SPACE = 1 << 22
"""Contexts that are drawn without repeating one, at most."""


@dataclass(frozen=True)
class Context:
    """The token ids of one call, and how near a tie a decision is there.

    Attributes:
        margin: the least margin of the decision in the call.
        tokens: the ids of every token input, in graph order, one after the other.
    """

    margin: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class NearTies:
    """What the search found for one contextual decision.

    Attributes:
        decision: the decision.
        margins: of every decision seen.
        contexts: the contexts evaluated, with repetitions.
        space: how many there are in all.
        deviation: the largest difference of a margin between calls of many contexts and calls of one.
        nearest: contexts by margin, at most `KEPT`.
        note: why less was done, or "".
    """

    decision: Decision
    margins: Margins = field(default_factory=Margins)
    contexts: int = 0
    space: int = 0
    deviation: float = 0.0
    nearest: tuple[Context, ...] = ()
    note: str = ""


class _ProgramRaised(Exception):
    """The program fails on a call that was made up."""


class NearTieSearch:
    """Searches the token ids of calls shaped like an example, its other inputs as they are.

    Contexts are drawn at random, none twice where there are at most `LARGEST_SPACE`. If they cannot all be evaluated, half of
    the budget goes to coordinate search: of the contexts nearest to a tie, one token at a time is exchanged for others.

    Args:
        program: the captured program.
        decisions: contextual ones, with margins.
        example: a call.
        budget: contexts to evaluate.
        seed: of everything drawn.
        progress: called after each call.

    Attributes:
        space: how many contexts there are in all.
        shares_calls: contexts are evaluated in calls of several.
    """

    def __init__(
        self,
        program: Program,
        decisions: Sequence[Decision],
        example: Example,
        budget: int,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._program = program
        self._decisions = list(decisions)
        self._budget = budget
        self._progress = progress
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._wanted = tuple(dict.fromkeys(node for each in decisions for node in each.operands))
        self._run = Interpreter(part(program, self._wanted, [node.name for node in program.input_nodes()]))
        self._symbol = _batch_symbol(program)
        self._fewest = 0 if self._symbol is None else program.least_size(self._symbol)
        self._example = example if self._symbol is None else resized(program, example, self._symbol, 1)
        leaves = dict(zip((node.name for node in program.input_nodes()), _leaves(self._example), strict=True))
        self._shapes = {name: leaves[name].shape for name in program.tokens}
        sizes = [(name, shape.numel()) for name, shape in self._shapes.items()]
        self._domains = [program.tokens[name] for name, count in sizes for _ in range(count)]
        self.space = math.prod(domain.rows for domain in self._domains)
        self._best: dict[Decision, dict[tuple[int, ...], float]] = {each: {} for each in decisions}
        self._seen = {each: Margins() for each in decisions}
        self._spent = 0
        self.shares_calls = self._symbol is not None

    def results(self) -> list[NearTies]:
        """Spend the budget."""
        note = ""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            try:
                for contexts in self._drawn(self._budget if self.space <= self._budget else max(1, self._budget // 2)):
                    self._evaluate(contexts)
                while self.space > self._budget > self._spent and self._domains:
                    self._climb()
                deviations = {each: self._deviation(each) for each in self._decisions}
            except _ProgramRaised as raised:
                note = f"the search ended after {self._spent:,} contexts, where the program raised {raised.__cause__!r}"
                deviations = dict.fromkeys(self._decisions, 0.0)
        return [
            NearTies(each, self._seen[each], self._spent, self.space, deviations[each], tuple(self._nearest(each, KEPT)), note)
            for each in self._decisions
        ]

    def example(self, tokens: Sequence[int]) -> Example:
        """The call of one context."""
        return self._call(torch.tensor([tokens]))

    def _drawn(self, count: int) -> Iterator[torch.Tensor]:
        """Contexts [≤ BATCH, tokens], as table rows of each token."""
        if self.space <= LARGEST_SPACE:
            numbers = torch.randperm(self.space, generator=self._generator)[:count]
            for part in numbers.split(BATCH):  # type: ignore[no-untyped-call]
                yield self._digits(part)
            return
        for start in range(0, count, BATCH):
            rows = min(BATCH, count - start)
            columns = [torch.randint(0, domain.rows, (rows,), generator=self._generator) for domain in self._domains]
            yield torch.stack([domain.ids()[column] for domain, column in zip(self._domains, columns, strict=True)], 1)

    def _digits(self, numbers: torch.Tensor) -> torch.Tensor:
        """The contexts with these numbers, the last token counting fastest."""
        columns = []
        for domain in reversed(self._domains):
            columns.append(domain.ids()[numbers % domain.rows])
            numbers = numbers // domain.rows
        return torch.stack(columns[::-1], 1)

    def _climb(self) -> None:
        """One token of one of the nearest contexts of one decision, exchanged for others at random."""
        turn = self._spent // BATCH
        decision = self._decisions[turn % len(self._decisions)]
        nearest = self._nearest(decision, CLIMBED)
        if not nearest:
            self._spent = self._budget
            return
        place = int(torch.randint(len(self._domains), (), generator=self._generator))
        domain = self._domains[place]
        rows = min(BATCH, self._budget - self._spent, domain.rows)
        contexts = torch.tensor([nearest[(turn // len(self._decisions)) % len(nearest)].tokens]).repeat(rows, 1)
        others = torch.randint(0, domain.rows, (rows,), generator=self._generator)
        contexts[:, place] = domain.ids()[torch.arange(rows) if rows == domain.rows else others]
        self._evaluate(contexts)

    def _evaluate(self, contexts: torch.Tensor) -> None:
        """Note the margins of every decision; in one call where contexts can share one."""
        if self.shares_calls and not self._spent:
            self.shares_calls = self._keep_apart_in_one_call(contexts[:TRIED])
        for shared in [contexts] if self.shares_calls else contexts.split(1):  # type: ignore[no-untyped-call]
            for decision, margins in self._margins(shared).items():
                self._seen[decision] += Margins.of(margins)
                best = self._best[decision]
                for tokens, margin in zip(shared.tolist(), margins.amin(1).tolist(), strict=True):
                    best[tuple(tokens)] = margin
                if len(best) > 2 * KEPT:
                    self._best[decision] = dict(sorted(best.items(), key=lambda item: item[1])[:KEPT])
            self._spent += shared.shape[0]
        if self._progress is not None:
            self._progress("searching near ties", self._spent, self._budget)

    def _keep_apart_in_one_call(self, contexts: torch.Tensor) -> bool:
        """Whether margins of a call of several contexts are those of each alone, one after the other.

        They are not where values lie otherwise than batch first, or where the rows of a batch meet.
        """
        rows = max(contexts.shape[0], self._fewest)
        alone = [self._all_margins(one) for one in contexts.split(1)]  # type: ignore[no-untyped-call]
        for decision, margins in self._all_margins(contexts).items():
            if margins.numel() % rows:
                return False
            found = margins.reshape(rows, -1).amin(1)[: contexts.shape[0]]
            expected = torch.stack([each[decision].amin() for each in alone])
            scale = margins[margins.isfinite()].sum() / max(int(margins.isfinite().sum()), 1)
            if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(scale)):
                return False
        return True

    def _margins(self, contexts: torch.Tensor) -> dict[Decision, torch.Tensor]:
        """Of each decision, [contexts, decisions in each]."""
        count, rows = contexts.shape[0], max(contexts.shape[0], self._fewest)
        found = self._all_margins(contexts)
        return {each: margin.reshape(rows if self.shares_calls else 1, -1)[:count] for each, margin in found.items()}

    def _all_margins(self, contexts: torch.Tensor) -> dict[Decision, torch.Tensor]:
        """Of each decision that the program makes in the call, as it lies there."""
        call = self._call(contexts)
        flat = flatten_inputs(self._program.module, call.args, dict(call.kwargs))
        try:
            with torch.no_grad():
                values = dict(zip(self._wanted, self._run.run(*flat), strict=True))
        except Exception as error:
            raise _ProgramRaised from error
        margins = {each: each.margin(values) for each in self._decisions}
        return {each: margin for each, margin in margins.items() if margin.numel()}

    def _call(self, contexts: torch.Tensor) -> Example:
        example = self._example
        if self._symbol is not None:
            contexts = contexts[torch.arange(max(contexts.shape[0], self._fewest)) % contexts.shape[0]]
            example = resized(self._program, example, self._symbol, contexts.shape[0])
        widths = [shape.numel() for shape in self._shapes.values()]
        for (name, shape), columns in zip(self._shapes.items(), contexts.split(widths, 1), strict=True):  # type: ignore[no-untyped-call]
            ids = columns.reshape(-1, *shape[1:]) if self._symbol is not None else columns.reshape(shape)
            example = with_tokens(self._program, example, name, lambda old, ids=ids: ids.to(old.dtype)) or example  # type: ignore[misc]
        return example

    def _nearest(self, decision: Decision, count: int) -> list[Context]:
        ordered = sorted(self._best[decision].items(), key=lambda item: item[1])
        return [Context(margin, tokens) for tokens, margin in ordered[:count]]

    def _deviation(self, decision: Decision) -> float:
        """Of the nearest contexts' margins, between the calls they were found in and calls of their own."""
        if self._symbol is None:
            return 0.0
        nearest = self._nearest(decision, CLIMBED)
        alone = [self._margins(torch.tensor([each.tokens]))[decision].min() for each in nearest if each.margin < math.inf]
        return max((abs(float(a) - each.margin) for a, each in zip(alone, nearest, strict=False)), default=0.0)


def _leaves(example: Example) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = example.leaves()
    return leaves


def _batch_symbol(program: Program) -> sympy.Expr | None:
    """The symbol of the leading dimension of every token input, if other inputs have it there or not at all."""
    shapes = {node.name: node.meta["val"].shape for node in program.input_nodes() if isinstance(node.meta["val"], torch.Tensor)}
    leading = {size_expression(shapes[name][0]) if len(shapes[name]) > 1 else None for name in program.tokens}
    if len(leading) != 1 or (symbol := leading.pop()) is None or symbol.is_Integer:
        return None
    for shape in shapes.values():
        if any(symbol in size_expression(size).free_symbols for size in shape[1:] if static_size(size) is None):
            return None
    return symbol
