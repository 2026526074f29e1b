"""fold_tokens: lookup tables in place of token-only computation, at the cheapest cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ..analysis.program import Program
from ..analysis.storage import measure_program
from .arithmetic import arithmetic, balance_of, byte_figures, without_subset, work_saved
from .choose import LARGEST_PRODUCT, Choice
from .context import PassContext, PassResult
from .ladder import Applied, Ladder
from .outcome import Outcome, Status
from .rewrite import Rewrite
from .shape_profiles import Profile
from .tables.region import RegionError, ancestors


@dataclass(frozen=True)
class FoldTokens:
    """Commutes the gather past row-wise operations: f(embedding(W, ids)) = embedding(f(W), ids).

    Claim: each table row is the value of the token-only region for one id, computed by the region's own operations,
    so for ids in the domain the program's values change by rounding at most. Everything downstream is untouched.

        before                                      after
        x = embedding(W, ids)          [B, T, E]    y = lookup(table, ids)        [B, T, O]
        h = layer_norm(x)                           z = attention(y)
        y = linear(h, P)               [B, T, O]
        z = attention(y)

    The tables stand at the cheapest cut (see `cut`): the choice of values with the fewest bytes of tables and of state
    still needed, given everyone else who reads the state. Operations that only move data stay below them. W, P and the
    norm's weights leave the program where nobody else reads them. Several tables over the same ids are packed, equal
    ones, rows and columns stored once (see `encode`).

    Refuses: parts where no choice of tables lowers logical *and* backing bytes (with the arithmetic, and who keeps the
    state); values over several token inputs with more than `largest_product` combinations; values broadcast along a
    symbolic length; memory layouts a lookup cannot reproduce; regions that need a size of another input.

    Args:
        largest_product: rows a table over several token inputs may have.
        max_table_bytes: None: a rewrite must save bytes. A number: the objective is latency; the cut minimises bytes
            read and operations a token with tables of at most so many bytes, and the pipeline keeps the result only
            if it measures faster.
        profiles: None: one table, and where complete outputs then differ, one for each execution class that
            `shape_profiles` discovers. Profiles, or mappings with `max_rows` and `evaluation_rows`: the classes as stated.

    Raises:
        ValueError: a negative budget, or malformed profiles.
    """

    largest_product: int = LARGEST_PRODUCT
    max_table_bytes: int | None = None
    profiles: Sequence[Profile | Mapping[str, int]] | None = None
    name: ClassVar[str] = "fold_tokens"

    def __post_init__(self) -> None:
        self._ladder()

    @property
    def aims_at_latency(self) -> bool:
        """Whether the pipeline keeps the result only if it measures faster."""
        return self.max_table_bytes is not None

    def run(self, program: Program, context: PassContext) -> PassResult:
        """Apply each connected part of the optimal choice that pays; say why for every other part."""
        choice = self._choice(program, context)
        parts = [[node.name for node in part] for part in choice.parts(choice.tables)]
        outcomes = self._not_chosen(choice)
        program, ended, rewrites = self._ladder().climb(program, parts, context, self._choice, self._apply)
        outcomes += ended
        return PassResult(program, tuple(outcomes), tuple(rewrites))

    def _ladder(self) -> Ladder:
        return Ladder.of(self.name, self.max_table_bytes, self.profiles)

    def _choice(self, program: Program, context: PassContext) -> Choice:
        return Choice(program, context.facts(program), context.consumers(program), self.largest_product, self.max_table_bytes)

    def _not_chosen(self, choice: Choice) -> list[Outcome]:
        """A refusal for each part of the frontier that the optimal choice leaves as it is."""
        outcomes = []
        frontier = choice.frontier()
        tabulated = set(choice.tables)
        for part in choice.parts(frontier):
            if not ancestors(part) & tabulated:
                outcomes.append(self._ladder().end(choice, part, Status.REFUSED, *arithmetic(choice, part)))
        for node in choice.too_many():
            combinations = choice.region_of(node).domain
            reason = f"a table would have {combinations} rows, more than largest_product={self.largest_product}"
            outcomes.append(self._ladder().end(choice, [node], Status.REFUSED, reason, {"rows": combinations}))
            frontier.append(node)
        for name in choice.program.tokens:
            if not any(name in choice.facts[node].tokens for node in frontier):
                reason = "no token-only computation beyond the table reads themselves"
                outcomes.append(Outcome(self.name, Status.NO_MATCH, f"token input {name}", reason))
        return outcomes

    def _apply(self, choice: Choice, nodes: Sequence[Node], context: PassContext, rung: str) -> Applied:
        program = choice.program
        reason, counted = arithmetic(choice, nodes)
        _, before, after = choice.predict(nodes, choice.table_bytes(nodes))
        if self.max_table_bytes is None and not after.below(before):
            return program, self._ladder().end(choice, nodes, Status.REFUSED, reason, counted), None
        try:
            built = self._ladder().build(choice, nodes, context, rung)
        except RegionError as error:
            return program, self._ladder().end(choice, nodes, Status.REFUSED, str(error), counted), None
        after = measure_program(built.copy)
        over = self.max_table_bytes is not None and built.table_bytes > self.max_table_bytes
        if over or (self.max_table_bytes is None and not after.below(before)):
            if built.rules:
                counted = byte_figures(choice, built.removed, built.table_bytes, before, after)
                reason += (
                    f"; tables by execution class ({'; '.join(built.rules)}) take {built.table_bytes:,} B: logical "
                    f"{before.logical:,} → {after.logical:,} B, backing {before.backing:,} → {after.backing:,} B"
                )
            return program, self._ladder().end(choice, nodes, Status.REFUSED, reason, counted), None
        context.fuel.take(rung)
        balance = balance_of(choice, nodes, built.removed)
        counted = byte_figures(choice, built.removed, built.table_bytes, before, after)
        freed = counted["bytes_before"]
        rewrite = Rewrite(rung, built.tables, built.removed, freed, built.table_bytes, balance)
        done = f"{freed:,} B of state became {built.table_bytes:,} B of tables ({balance})"
        if self.max_table_bytes is not None:
            done += f"; {work_saved(choice, nodes)}"
        done += without_subset(choice, nodes, freed)
        done += "".join(f"; a table for each execution class ({rule})" for rule in built.rules)
        return built.copy, self._ladder().end(choice, nodes, Status.APPLIED, done, counted), rewrite
