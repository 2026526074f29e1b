"""Where bytes went: the waterfall, every table with its shape, and the state that came, went or changed."""

from __future__ import annotations

from ..diff import Diff
from ..edits import StateChanged
from .charts import storage_waterfall
from .markup import Html, element, joined, table
from .parts import MOST_LISTED, Report, badge, foldable, node_button, section, shortened


def storage(report: Report, whole: Diff | None) -> Html:
    costs = [
        element("li", f"{each['name']}: {each['bytes_before']:,} B became {each['bytes_after']:,} B; {each['balance']}")
        for each in report["rewrites"]
    ]
    return section(
        "storage",
        "Storage and tables",
        storage_waterfall(report),
        _tables(report, whole),
        element("ul", costs) if costs else None,
        state_changes(whole) if whole is not None else None,
    )


def _tables(report: Report, whole: Diff | None) -> Html | None:
    held = whole.after.state if whole is not None else {}
    rows = []
    for each in (each for rewrite in report["rewrites"] for each in rewrite["tables"]):
        state = held.get(each["state"])
        values = (joined(node_button(value["name"]), f" {value['width']} wide ({value['at']}) ") for value in each["values"])
        kind, size = (state.type, f"{state.bytes:,} B") if state else (f"{each['rows']:,} rows", "")
        rows.append((each["state"], ", ".join(each["inputs"]), joined(values), kind, size, each["stored"]))
    return table(("table", "read by", "values", "dtype and shape", "bytes", "stored as"), rows) if rows else None


def state_changes(diff: Diff) -> Html | None:
    """State that came, went or changed, to open; None where none did."""
    edits = [edit for edit in diff.edits if isinstance(edit, StateChanged)]
    if not edits:
        return None
    rows = []
    for edit in edits[:MOST_LISTED]:
        held = edit.after or edit.before
        assert held is not None
        what = "added" if edit.before is None else "freed" if edit.after is None else "changed"
        rows.append((badge(what), edit.name, held.kind, held.type, f"{held.bytes:,} B", ", ".join(held.shares)))
    heads = ("change", "name", "kind", "dtype and shape", "bytes", "shares memory with")
    return foldable(f"State that changed: {shortened('name(s)', len(edits))}", table(heads, rows), opened=len(edits) <= 12)
