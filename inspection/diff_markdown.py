"""A diff as a comment on a pull request: a summary to read, details to open, within what GitHub takes."""

from __future__ import annotations

import re
from html import escape

from .diff import Diff
from .diff_text import Hunk, hunks, printable

LIMIT = 65_000
"""Bytes of the text, at most; GitHub refuses comments of more than 65,536 characters."""
ALL_OF_IT = "the text form (`foldfx diff A B`) has all of it"


def diff_markdown(diff: Diff) -> str:
    """GitHub-flavoured Markdown of at most `LIMIT` bytes; details beyond are counted. Names from a model are escaped."""
    title = f"### foldfx diff: {_plain(diff.before.label)} → {_plain(diff.after.label)}"
    if diff.empty:
        return f"{title}\n\nEqual: nothing differs but names."
    parts = [f"{title}\n\n{_table(diff)}"]
    if not diff.compares_metadata:
        parts.append("Metadata are not compared: one side is a bare graph.")
    left = LIMIT - len("\n\n".join(parts).encode()) - 200
    found = hunks(diff)
    for number, hunk in enumerate(found):
        text = _details(hunk, left)
        if not text:
            parts.append(f"{len(found) - number} of {len(found)} groups of changes do not fit; {ALL_OF_IT}.")
            break
        parts.append(text)
        left -= len(text.encode()) + 2
    return "\n\n".join(parts)


def _table(diff: Diff) -> str:
    lines = ["| | before | after | change |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {one:,} | {other:,} | {other - one:+,} |" for name, one, other in diff.figures]
    counts = [f"{count} {name}" for name, count in diff.counts.items() if count]
    lines += ["", f"**{', '.join(counts)}**"]
    return "\n".join(lines)


def _details(hunk: Hunk, room: int) -> str:
    """One group to open, shortened to `room` bytes; "" where not even a line fits."""
    fence = _fence(hunk.lines)
    head = f"<details><summary>{escape(printable(hunk.title))}</summary>\n\n{fence}diff\n"
    tail = f"\n{fence}\n\n</details>"
    room -= len(head.encode()) + len(tail.encode()) + 100
    lines: list[str] = []
    for line in map(printable, hunk.lines):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        lines.append(line)
    if not lines:
        return ""
    more = len(hunk.lines) - len(lines)
    rest = f"\n\n{more} more lines; {ALL_OF_IT}." if more else ""
    return f"{head}{chr(10).join(lines)}\n{fence}{rest}\n\n</details>"


def _fence(lines: tuple[str, ...]) -> str:
    """More backticks than stand together anywhere within."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    return "`" * max(3, longest + 1)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]|#~@])", r"\\\1", escape(printable(text), quote=False))
