"""fold_routes: a table of chosen experts, and of their weights, in place of a router whose scores are token-only."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from ..analysis.decisions import Decision, find_decisions
from ..analysis.facts import Facts
from ..analysis.hashed import HashedChoice, find_hashed
from ..analysis.program import Program
from ..analysis.provenance import where
from ..analysis.storage import measure_program
from .arithmetic import balance_of, byte_figures
from .choose import Choice
from .context import PassContext, PassResult
from .ladder import Applied, Ladder
from .outcome import Outcome, Status
from .rewrite import Rewrite
from .shape_profiles import Profile
from .tables.region import Region, RegionError, is_metadata_check, moved

KINDS = ("top-k", "argmax", "sort", "buckets")
"""Decisions whose outcome is a route: numbers of what was chosen."""


@dataclass(frozen=True)
class FoldRoutes:
    """Makes token-only routing a table lookup, so that the same token takes the same route in every call.

    Claim: each table row holds the ids that the program's own router chooses for one token, and their weights as the
    program computes them, so routes are those of the original and weights change by rounding at most. Ids are stored in
    the smallest integer dtype that holds them and never pass through floats.

        before                                      after
        s = router(embedding(W, ids))  [B, T, E]    route = lookup(ids_table, ids)        [B, T, K]
        top = topk(s, K)                            weights = lookup(weights_table, ids)  [B, T, K]
        weights = softmax(top.values)               y = experts(x, route, weights)
        y = experts(x, top.indices, weights)

    Weights are what follows from the chosen scores alone and is no wider than they are. Where weights depend on context
    they stay computed, and only the ids become a table. A router that someone else reads stays.

    Bytes may grow: the aim is reproducible routes. Refuses: routers whose scores depend on context; tables beyond the
    budget; memory layouts a lookup cannot reproduce.

    Args:
        max_table_bytes: the budget of all tables of one router; None: any.
        profiles: as for `FoldTokens`.

    Raises:
        ValueError: a negative budget, or malformed profiles.
    """

    max_table_bytes: int | None = None
    profiles: Sequence[Profile | Mapping[str, int]] | None = None
    name: ClassVar[str] = "fold_routes"

    def __post_init__(self) -> None:
        self._ladder()

    def run(self, program: Program, context: PassContext) -> PassResult:
        """Apply each router whose ids are token-only; say why for every other decision among several."""
        choice = self._choice(program, context)
        routes = [each for each in find_decisions(program, choice.facts) if each.kind in KINDS]
        folded = [each for each in routes if each.foldable]
        values = dict.fromkeys(node for each in folded for node in route_values(each, choice))
        parts = [[node.name for node in part] for part in choice.parts(choice.read_among(list(values)))]
        outcomes = [self._contextual(each, choice.facts) for each in routes if not each.foldable]
        outcomes += [self._hashed(each) for each in find_hashed(program, choice.facts)]
        program, ended, rewrites = self._ladder().climb(program, parts, context, self._choice, self._apply)
        outcomes += ended
        if not outcomes:
            outcomes.append(
                Outcome(self.name, Status.NO_MATCH, "the program", "nothing chooses among several by a float score")
            )
        return PassResult(program, tuple(outcomes), tuple(rewrites))

    def _ladder(self) -> Ladder:
        return Ladder.of(self.name, self.max_table_bytes, self.profiles)

    def _choice(self, program: Program, context: PassContext) -> Choice:
        return Choice(program, context.facts(program), context.consumers(program))

    def _contextual(self, route: Decision, facts: Facts) -> Outcome:
        lost = facts.refusal(route.score)
        why = f"{lost.name} ({where(lost)}): {facts[lost].because.text}"
        reason = f"its score {route.score.name} depends on more than token ids: {why}"
        return Outcome(self.name, Status.REFUSED, _subject(route.node), reason, (route.node.name,))

    def _hashed(self, choice: HashedChoice) -> Outcome:
        reason = f"its ids come from {choice.table} by token id already; what else it depends on stays computed"
        return Outcome(self.name, Status.NO_MATCH, _subject(choice.node), reason, (choice.node.name,))

    def _apply(self, choice: Choice, nodes: Sequence[Node], context: PassContext, rung: str) -> Applied:
        program = choice.program
        if self._is_over(least := choice.table_bytes(nodes)):
            return program, self._ladder().end(choice, nodes, Status.REFUSED, self._over(least)), None
        try:
            built = self._ladder().build(choice, nodes, context, rung)
        except RegionError as error:
            return program, self._ladder().end(choice, nodes, Status.REFUSED, str(error)), None
        before, after = measure_program(program), measure_program(built.copy)
        counted = byte_figures(choice, built.removed, built.table_bytes, before, after)
        if self._is_over(built.table_bytes):
            return program, self._ladder().end(choice, nodes, Status.REFUSED, self._over(built.table_bytes), counted), None
        context.fuel.take(rung)
        freed = counted["bytes_before"]
        balance = balance_of(choice, nodes, built.removed)
        growth = after.backing - before.backing
        change = f"bytes grow by {growth:,}, accepted for reproducible routes" if growth > 0 else f"bytes drop by {-growth:,}"
        done = f"{freed:,} B of state became {built.table_bytes:,} B of route tables; {change} ({balance})"
        done += "".join(f"; {sentence}" for sentence in [*_still_scored(choice, nodes, built.copy), *choice.stays(nodes)])
        done += "".join(f"; a table for each execution class ({rule})" for rule in built.rules)
        rewrite = Rewrite(rung, built.tables, built.removed, freed, built.table_bytes, balance)
        return built.copy, self._ladder().end(choice, nodes, Status.APPLIED, done, counted), rewrite

    def _is_over(self, table_bytes: int) -> bool:
        return self.max_table_bytes is not None and table_bytes > self.max_table_bytes

    def _over(self, table_bytes: int) -> str:
        return f"route tables of {table_bytes:,} B, the budget is {self.max_table_bytes:,} B"


def _still_scored(choice: Choice, nodes: Sequence[Node], copy: Program) -> list[str]:
    """Who else reads the scores that the tables were built from, one sentence each."""
    left = {node.name: node for node in copy.graph.nodes}
    decisions = [each for each in find_decisions(choice.program, choice.facts) if set(each.outcomes) & set(nodes)]
    kept = {each.score.name: left[each.score.name] for each in decisions if each.score.name in left}
    readers = {name: next(iter(node.users)) for name, node in kept.items()}
    return [f"its score {name} stays computed: {reader.name} ({where(reader)}) reads it" for name, reader in readers.items()]


def _subject(node: Node) -> str:
    return f"route {node.name} ({where(node)})"


def route_values(route: Decision, choice: Choice) -> list[Node]:
    """What of a token-only route becomes tables: the ids chosen, then weights, each only where something reads it."""
    ids = [node for node in route.outcomes if _is_read(node)]
    if not ids or choice.facts[ids[0]].rows is None:
        return []
    region = choice.region_of(ids[0])
    return [*ids, *(node for node in _weights(route, ids, region) if node not in ids)]


def _weights(route: Decision, ids: Sequence[Node], region: Region) -> Iterable[Node]:
    """The last values of the computation that starts at the chosen scores and takes in nothing wider than the choice."""
    widest = region.width(ids[0])
    chain = {user for user in route.node.users if user.target is operator.getitem and user.args[1] == 0}
    for node in region.facts:
        if node in chain or node in ids or not _is_weight(node, region) or region.width(node) > widest:
            continue
        operands = [operand for operand in node.all_input_nodes if region.facts[operand].token_only]
        reads_ids = any(operand in ids for operand in operands)
        if reads_ids or all(operand in chain for operand in operands):
            chain.add(node)
    return [
        node
        for node in region.facts
        if node in chain and any(user not in chain for user in node.users if not is_metadata_check(user))
    ]


def _is_weight(node: Node, region: Region) -> bool:
    value = node.meta.get("val")
    computed = node.op == "call_function" and moved(node) is None and region.contains(node)
    return computed and isinstance(value, torch.Tensor) and value.is_floating_point() and region.facts[node].rows is not None


def _is_read(node: Node) -> bool:
    return any(not is_metadata_check(user) for user in node.users)
