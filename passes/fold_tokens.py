"""fold_tokens: lookup tables in place of token-only computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ..analysis.program import Program
from ..analysis.storage import Storage, measure
from .builder import provide
from .context import PassContext, PassResult
from .outcome import Outcome, Status
from .region import STORED_READS, Region, RegionError, ancestors, is_metadata_check, moved, unmoved
from .rewrite import Rewrite, Table
from .splice import splice_lookup, sweep
from .tabulate import tabulate

TABLES = "foldfx_tables"


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

    The tables stand at the frontier of the region: the last token-only values before position, length or context
    come in. Operations that only move data stay below them. W, P and the norm's weights leave the program where
    nobody else reads them.

    Refuses: a frontier whose tables would not lower logical *and* backing bytes (with the arithmetic); values of
    more than one token input; values broadcast along a symbolic length; memory layouts a lookup cannot reproduce;
    regions that need a size of another input.
    """

    name: ClassVar[str] = "fold_tokens"

    def run(self, program: Program, context: PassContext) -> PassResult:
        """Try each connected part of each token input's region; apply the ones that pay."""
        outcomes: list[Outcome] = []
        rewrites: list[Rewrite] = []
        for name in program.tokens:
            parts = list(_parts(self._region(program, context, name)))
            if not parts:
                reason = "no token-only computation beyond the table reads themselves"
                outcomes.append(Outcome(self.name, Status.NO_MATCH, f"token input {name}", reason))
            for part in parts:
                region = self._region(program, context, name)
                program, outcome, rewrite = self._try(program, region, part, context)
                outcomes.append(outcome)
                rewrites += [rewrite] if rewrite else []
        return PassResult(program, tuple(outcomes), tuple(rewrites))

    @staticmethod
    def _region(program: Program, context: PassContext, name: str) -> Region:
        ids = next(node for node in program.input_nodes() if node.name == name)
        return Region(program, context.facts(program), ids)

    def _try(
        self, program: Program, region: Region, part: Sequence[str], context: PassContext
    ) -> tuple[Program, Outcome, Rewrite | None]:
        values = [region.facts.node(name) for name in part]
        subject = f"token input {region.ids.name}, values {', '.join(part)}"

        def end(status: Status, reason: str, **figures: object) -> Outcome:
            return Outcome(self.name, status, subject, reason, tuple(part), figures)

        if not context.fuel.left:
            return program, end(Status.REFUSED, "out of fuel: the maximum number of rewrites is used up"), None
        copy = program.copy()
        try:
            tables = [f"{TABLES}.{node.name}" for node in values]
            bounds = region.bounds(values)
            for node, table in zip(values, tables, strict=True):
                splice_lookup(copy.module, region, node, table, bounds, self.name)
            removed = sweep(copy.module, region, values)
            copy.module.recompile()
            before, after = measure(program.module), measure(copy.module)
            figures = _figures(region, values, program, removed, before, after)
            if not after.below(before):
                return program, end(Status.REFUSED, _arithmetic(region, values, removed, figures, before, after), **figures), None
            filled = tabulate(region, values, context.progress)
        except RegionError as error:
            return program, end(Status.REFUSED, str(error)), None
        for table, rows in zip(tables, filled, strict=True):
            provide(copy.module, table, rows)
        context.fuel.take()
        rewrite = Rewrite(
            self.name,
            region,
            tuple(Table(node, table, bounds) for node, table in zip(values, tables, strict=True)),
            tuple(removed),
            figures["bytes_before"],
            figures["bytes_after"],
        )
        reason = f"{figures['bytes_before']:,} B of state became {figures['bytes_after']:,} B of tables"
        return copy, end(Status.APPLIED, reason, **figures), rewrite


def _frontier(region: Region) -> list[Node]:
    """The values to tabulate: computed, token-only, and read by something that is not."""
    found: dict[Node, None] = {}
    for node in region.values():
        leaves = any(not region.contains(user) and not is_metadata_check(user) for user in node.users)
        source = unmoved(node)
        if leaves and _computes(region, source):
            found[source] = None
    return list(found)


def _computes(region: Region, node: Node) -> bool:
    """More than the ids, or rows read straight from stored state."""
    if node is region.ids or not region.contains(node):
        return False
    operands = [operand for operand in node.all_input_nodes if region.contains(operand)]
    stored = all(operand.op == "get_attr" for operand in node.all_input_nodes if not region.contains(operand))
    reads_ids = all(unmoved(operand) is region.ids for operand in operands)
    return not (reads_ids and stored and node.target in STORED_READS)


def _parts(region: Region) -> Iterator[list[str]]:
    """The frontier in connected parts: values computed from a common value or weight are decided together."""
    groups: list[tuple[set[Node], list[str]]] = []
    for node in _frontier(region):
        reach = {n for n in ancestors([node]) if n is not region.ids and moved(n) is not region.ids}
        names = [node.name]
        apart = []
        for other, others in groups:
            if reach & other:
                reach |= other
                names = others + names
            else:
                apart.append((other, others))
        groups = [*apart, (reach, names)]
    return iter([names for _, names in groups])


def _figures(
    region: Region, values: Sequence[Node], program: Program, removed: Sequence[str], before: Storage, after: Storage
) -> dict[str, int]:
    table_bytes = region.domain * sum(map(region.row_bytes, values))
    state = program.module.state_dict()
    freed = sum(state[name].numel() * state[name].element_size() for name in removed if name in state)
    return {
        "domain": region.domain,
        "bytes_before": freed,
        "bytes_after": table_bytes,
        "logical_before": before.logical,
        "logical_after": after.logical,
        "backing_before": before.backing,
        "backing_after": after.backing,
    }


def _arithmetic(
    region: Region, values: Sequence[Node], removed: Sequence[str], figures: dict[str, int], before: Storage, after: Storage
) -> str:
    """The refusal a user can check by hand."""
    widths = " + ".join(f"{region.row_bytes(node)} ({node.name})" for node in values)
    freed = f"frees {figures['bytes_before']:,} B ({', '.join(removed)})" if removed else "frees nothing"
    return (
        f"does not pay: tables of {region.domain:,} ids × ({widths}) B = {figures['bytes_after']:,} B, and it {freed}; "
        f"logical {before.logical:,} → {after.logical:,} B, backing {before.backing:,} → {after.backing:,} B, both must drop"
    )
