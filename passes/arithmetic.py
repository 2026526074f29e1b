"""What tabulating values costs and frees: in bytes and operations, as a sentence and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch.fx import Node

from ..analysis.break_even import BreakEven, break_even
from ..analysis.storage import Storage
from ..analysis.tokens import table_lookups
from .choose import Choice
from .latency import multiply_adds
from .sweep import needed_without


def arithmetic(choice: Choice, part: Sequence[Node]) -> tuple[str, dict[str, Any]]:
    """What tabulating `part` would cost and free, as a sentence a user can check by hand, and in figures."""
    table_bytes = choice.table_bytes(part)
    freed, before, after = choice.predict(part, table_bytes)
    counted = byte_figures(choice, freed, table_bytes, before, after)
    rows = " + ".join(
        f"{choice.region_of(node).domain:,} × {choice.region_of(node).row_bytes(node):,} ({node.name})" for node in part
    )
    frees = f"frees {counted['bytes_before']:,} B ({', '.join(freed)})" if freed else "frees nothing"
    stays = "".join(f"; {sentence}" for sentence in choice.stays(part))
    if choice.max_table_bytes is not None:
        over = f"tables of {rows} = {table_bytes:,} B, the budget is {choice.max_table_bytes:,} B; {work_saved(choice, part)}"
        return f"no choice of tables within the budget saves work a token: {over}", counted
    text = (
        f"does not pay: tables of {rows} = {table_bytes:,} B, and it {frees}{stays}; logical {before.logical:,} → "
        f"{after.logical:,} B, backing {before.backing:,} → {after.backing:,} B, both must drop "
        f"({balance_of(choice, part, freed)}){without_subset(choice, part, counted['bytes_before'])}"
    )
    nearest = choice.nearest(part) if not after.below(before) else []
    if nearest and set(nearest) != set(part):
        fewer = choice.table_bytes(nearest)
        left, _, then = choice.predict(nearest, fewer)
        if then.backing < after.backing:
            text += (
                f"; nearest to it: tables of {', '.join(node.name for node in nearest)} = {fewer:,} B, which free "
                f"{', '.join(left)}, logical {then.logical - before.logical:+,} B, backing {then.backing - before.backing:+,} B"
            )
            counted |= {"nearest_logical": then.logical, "nearest_backing": then.backing}
    return text, counted


def work_saved(choice: Choice, part: Sequence[Node]) -> str:
    """Multiply-adds that leave every token, against the elements now gathered."""
    gone = [node for node in choice.values if node not in needed_without(choice.program.graph, part)]
    products = sum(multiply_adds(node, choice.facts) for node in gone)
    gathered = sum(choice.region_of(node).width(node) for node in part)
    return f"{products:,} multiply-adds a token become a gather of {gathered:,} elements"


def without_subset(choice: Choice, part: Sequence[Node], freed: int) -> str:
    """What the reachable subset changes: the same tables over all ids."""
    regions = [choice.region_of(node) for node in part]
    if all(domain.reachable is None for region in regions for domain in region.domains):
        return ""
    whole = sum(
        prod(d.size for d in region.domains) * region.row_bytes(node) for region, node in zip(regions, part, strict=True)
    )
    return f"; over all ids the tables would take {whole:,} B and {'also' if whole < freed else 'not'} pay"


def byte_figures(choice: Choice, freed: Sequence[str], table_bytes: int, before: Storage, after: Storage) -> dict[str, Any]:
    """State freed, tables and totals in bytes, and the names of the state freed."""
    state = choice.program.module.state_dict()
    return {
        "bytes_before": sum(state[name].numel() * state[name].element_size() for name in freed if name in state),
        "bytes_after": table_bytes,
        "logical_before": before.logical,
        "logical_after": after.logical,
        "backing_before": before.backing,
        "backing_after": after.backing,
        "freed": list(freed),
    }


def balance_of(choice: Choice, part: Sequence[Node], freed: Sequence[str]) -> BreakEven:
    """Symbolic in the vocabulary of the part's token input; other inputs' sizes, and subsets of ids, are numbers."""
    state = choice.program.module.state_dict()
    inputs = sorted({name for node in part for name in choice.facts[node].tokens})
    domain = choice.program.tokens[inputs[0]]
    lookups = [each for each in table_lookups(choice.program.graph) if isinstance(each.node.args[0], Node)]
    read = {str(each.node.args[0].target) for each in lookups if each.rows == domain.size}  # type: ignore[union-attr]
    by_id = [name for name in freed if name in read and len(inputs) == 1]
    rows = [(name, state[name][0].numel(), state[name].element_size()) for name in by_id if name in state]
    fixed = [(name, state[name].numel(), state[name].element_size()) for name in freed if name not in by_id and name in state]
    tables = []
    for node in part:
        region = choice.region_of(node)
        whole = len(inputs) == 1 and domain.reachable is None
        term = node.name, region.width(node), choice.item_bytes(node)
        tables.append((term, None if whole else region.domain))
    return break_even(rows, fixed, tables)
