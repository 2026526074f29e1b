"""What the report on a terminal is made of: sections, tables, model text shown as it is, and bytes in human units."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.filesize import pick_unit_and_suffix
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MOST_SHOWN = 12
"""Entries of one list that are shown, at most."""

_EXACT_BELOW = 10 * 1024
_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]


def literal(text: object, style: str = "") -> Text:
    """Text as it is: markup and emoji codes are not read, and what cannot be printed, such as ESC, is written as an escape."""
    return Text("".join(each if each.isprintable() else repr(each)[1:-1] for each in str(text)), style)


def lines(*texts: object) -> Text:
    """One below the other, each wrapped on its own."""
    return Text("\n").join(_text(each) for each in texts)


def human_bytes(count: int) -> str:
    """Below 10 KiB in B, which is exact; from there on in binary units."""
    if abs(count) < _EXACT_BELOW:
        return f"{count:,} B"
    unit, suffix = pick_unit_and_suffix(abs(count), _UNITS, 1024)
    return f"{count / unit:,.2f} {suffix}"


def listed(items: Sequence[str], most: int | None = MOST_SHOWN) -> list[str]:
    """The first `most`, and how many more there are; None: all."""
    left = len(items[most:]) if most is not None else 0
    return [*items[:most], *([f"and {left:,} more"] if left else [])]


def left_out(items: Sequence[object]) -> Text | None:
    """How many of the items are not shown, and where they are; None where all are."""
    left = len(items[MOST_SHOWN:])
    return Text(f"… and {left:,} more: --json has all, and report.json of --run-dir", "italic") if left else None


def aligned(
    heads: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = (), most: int | None = MOST_SHOWN
) -> Table:
    """A table that wraps what does not fit and cuts nothing off.

    Args:
        heads: of the columns.
        rows: cells; what is no Text is shown as it is.
        right: heads of the columns of numbers.
        most: how many rows are shown; a line below says how many are left out. None: all.
    """
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for head in heads:
        made.add_column(Text(head), justify="right" if head in right else "left", overflow="fold")
    for row in rows[:most]:
        made.add_row(*map(_text, row))
    made.caption, made.caption_justify = left_out(rows) if most is not None else None, "left"
    return made


def section(title: str | Text, *bodies: RenderableType) -> Group:
    """An empty line, the title, and the bodies below it; an empty line parts a table from what follows."""
    head = title if isinstance(title, Text) else Text(title, "bold")
    below = [int(isinstance(body, Table)) for body in bodies[:-1]]
    return Group(Text(), head, *(indented(body, under) for body, under in zip(bodies, [*below, 0], strict=False)))


def indented(body: RenderableType, below: int = 0) -> Padding:
    """Two columns to the right, with empty lines below."""
    return Padding(body, (0, 0, below, 2), expand=False)


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else literal(cell)
