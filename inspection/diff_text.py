"""A diff as text in the style of a unified diff: lines that went begin with -, those that came with +, moved ones with ~."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..analysis.storage import Storage
from .diff import Diff
from .edits import FIRST, Edit, Moved, NoteChanged, Relocated, Removed, Retyped, Rewired, StateChanged
from .lineage import Lineage
from .outline import INPUT, OUTPUT, STATE, Held, Outline, Value

NAMED = 4
"""Values that a heading names on each side, at most."""


@dataclass(frozen=True)
class Hunk:
    """Changes that belong together.

    Attributes:
        title: what happened.
        lines: -, +, ~ or a space, then what was there or is there now.
    """

    title: str
    lines: tuple[str, ...]


def diff_text(diff: Diff) -> str:
    """All of it, a line for each change; "" where the graphs are equal. Ends without a line break."""
    if diff.empty:
        return ""
    lines = [f"--- {diff.before.label}", f"+++ {diff.after.label}", *summary_lines(diff)]
    for hunk in hunks(diff):
        lines += [f"@@ {hunk.title} @@", *hunk.lines]
    if not diff.compares_metadata:
        bare = next(side.label for side in (diff.before, diff.after) if side.metadata is None)
        lines.append(f"metadata: not compared, {bare} is a bare graph")
    return "\n".join(map(printable, lines))


def printable(text: str) -> str:
    """One line that a terminal shows as it is: line breaks and control characters, which names may hold, as escapes."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def summary_lines(diff: Diff) -> list[str]:
    """How much changed, and what it does to the state."""
    counts = ", ".join(f"{count} {name}" for name, count in diff.counts.items() if count)
    before, after = diff.before.storage, diff.after.storage
    freed, added = diff.state_freed, diff.state_added
    lines = [f"changes: {counts}; {diff.before.calls} → {diff.after.calls} calls"]
    lines += [f"logical {change_of(before.logical, after.logical)}, backing {change_of(before.backing, after.backing)}"]
    if freed != added:
        lines.append(f"state freed: {freed}; added: {added}")
    return lines


def change_of(before: int, after: int) -> str:
    return f"{before:,} B" if before == after else f"{before:,} → {after:,} B ({after - before:+,})"


def hunks(diff: Diff) -> list[Hunk]:
    """Rewrites with their provenance, then what happened to values that stay, to state, signature and metadata."""
    names = Names(diff.before, diff.after)
    gone = {edit.value.key: edit for edit in diff.edits if isinstance(edit, Removed)}
    new = {value.key: value for value in diff.after.values}
    found = [_rewrite(group, gone, new, names) for group in diff.lineage]
    found += _changed(diff, names)
    states = [edit for edit in diff.edits if isinstance(edit, StateChanged)]
    if states:
        found.append(
            Hunk(_bytes_title(diff.state_freed, diff.state_added), tuple(line for each in states for line in _state(each)))
        )
    for section in ("signature", "metadata"):
        notes = [edit for edit in diff.edits if isinstance(edit, NoteChanged) and edit.section == section]
        if notes:
            found.append(Hunk(section, tuple(line for note in notes for line in _note(note))))
    return found


class Names:
    """What values are called in the text: as in the graph before; those that are new by their own name, marked if taken."""

    def __init__(self, before: Outline, after: Outline | None = None) -> None:
        self._names = {value.key: value.name for value in before.values}
        taken = set(self._names.values())
        for value in after.values if after is not None else ():
            if value.key not in self._names:
                name = value.name
                while name in taken:
                    name += "′"
                taken.add(name)
                self._names[value.key] = name

    def __getitem__(self, key: str) -> str:
        return key.removeprefix(STATE) if key.startswith(STATE) else self._names[key]

    def several(self, keys: Sequence[str]) -> str:
        if len(keys) <= NAMED:
            return ", ".join(self[key] for key in keys)
        first = [self[key] for key in keys[: NAMED - 1]]
        return ", ".join([*first, f"… {len(keys) - NAMED} more", self[keys[-1]]])

    def line(self, value: Value, *more: str) -> str:
        """The value as code, and what is known about it."""
        if value.op == INPUT:
            code = f"{self[value.key]} = input {value.target}"
        else:
            arguments = value.arguments.format(*map(self.__getitem__, value.operands))
            call = f"{self[value.key]} = {value.target.removesuffix('.default')}({arguments})"
            code = f"return {arguments}" if value.op == OUTPUT else call
        notes = [value.type, f"module {value.module}" if value.module else "", value.source, *more]
        return "  # ".join([code, *(["; ".join(filter(None, notes))] if any(notes) else [])])


def _rewrite(group: Lineage, gone: Mapping[str, Removed], new: Mapping[str, Value], names: Names) -> Hunk:
    by = f"{', '.join(group.by)}: " if group.by else ""
    what = [f"{names.several(group.before)} → " if group.before else "", names.several(group.after) or "nothing"]
    title = f"{group.kind} {by}{''.join(what)}"
    lines = []
    for key in group.before:
        instead = gone[key].instead
        lines.append("-" + names.line(gone[key].value, f"its readers take {names[instead]}" if instead else ""))
    return Hunk(title, (*lines, *(f"+{names.line(new[key])}" for key in group.after)))


_WORDS: Mapping[type[Edit], str] = {Rewired: "rewired", Retyped: "retyped", Moved: "moved", Relocated: "relocated"}


def _changed(diff: Diff, names: Names) -> Iterator[Hunk]:
    """Values that stay, those to which the same happened together."""
    happened: dict[str, dict[type[Edit], Edit]] = {}
    for edit in diff.edits:
        if isinstance(edit, Rewired | Retyped | Relocated):
            happened.setdefault(edit.before.key, {})[type(edit)] = edit
        elif isinstance(edit, Moved):
            happened.setdefault(edit.value.key, {})[Moved] = edit
    new = {value.key: value for value in diff.after.values}
    old = {value.key: value for value in diff.before.values}
    together: dict[str, list[str]] = {}
    for key in (value.key for value in diff.after.values if value.key in happened):
        edits = happened[key]
        title = " and ".join(word for kind, word in _WORDS.items() if kind in edits)
        moved = edits.get(Moved)
        where = ""
        if isinstance(moved, Moved):
            where = "now first" if moved.behind == FIRST else f"now behind {names[moved.behind]}"
        lines = [f"~{names.line(new[key], where)}"] if len(edits) == 1 and where else _both(old[key], new[key], names, where)
        together.setdefault(title, []).extend(lines)
    for title, lines in together.items():
        yield Hunk(title, tuple(lines))


def _both(old: Value, new: Value, names: Names, where: str) -> list[str]:
    return [f"-{names.line(old)}", f"+{names.line(new, where)}"]


def _bytes_title(freed: Storage, added: Storage) -> str:
    return f"state: freed {freed.backing:,} B, added {added.backing:,} B"


def _state(edit: StateChanged) -> list[str]:
    lines = [f"-{_held(edit.name, edit.before)}"] if edit.before is not None else []
    if edit.after is not None:
        lines.append(f"+{_held(edit.name, edit.after)}{'; other contents' if edit.contents else ''}")
    return lines


def _held(name: str, held: Held) -> str:
    shares = f"; shares memory with {', '.join(held.shares)}" if held.shares else ""
    return f"{name}  # {held.kind}, {held.type}; {held.bytes:,} B{shares}"


def _note(note: NoteChanged) -> list[str]:
    sides = (("-", note.before), ("+", note.after))
    return [f"{sign}{note.label}: {text}" for sign, text in sides if text is not None]
