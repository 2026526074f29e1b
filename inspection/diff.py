"""What changed between two graphs, value by value, whatever the values are called."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._torch import storage_key
from ..analysis.fingerprint import Digests
from ..analysis.storage import Storage
from .edits import FIRST, Added, Edit, Moved, NoteChanged, Relocated, Removed, Retyped, Rewired, StateChanged, edit_to_dict
from .identity import same_values
from .lineage import Lineage, find_lineage
from .load_outline import Comparable, as_outline
from .outline import CALL, Held, Outline, storage_of

DIFF_VERSION = 1
DIFF_SCHEMA = Path(__file__).with_name("diff.schema.json")
"""The JSON Schema of `Diff.to_dict`."""

KINDS: Mapping[str, type[Edit]] = {
    "added": Added,
    "removed": Removed,
    "rewired": Rewired,
    "retyped": Retyped,
    "moved": Moved,
    "relocated": Relocated,
    "state": StateChanged,
}


@dataclass(frozen=True)
class Diff:
    """What makes one graph of another.

    Attributes:
        before: the one.
        after: the other; a value that both have stands under its key in `before`.
        edits: what `edits.apply` needs to make `after` of `before`; () where they differ in nothing but names.
        lineage: which removed values became which added ones.
    """

    before: Outline
    after: Outline
    edits: tuple[Edit, ...]
    lineage: tuple[Lineage, ...]

    @property
    def empty(self) -> bool:
        return not self.edits

    @property
    def counts(self) -> dict[str, int]:
        """How many edits there are of each kind in `KINDS`, then of the signature and of the metadata."""
        kinds = Counter(type(edit) for edit in self.edits)
        notes = Counter(edit.section for edit in self.edits if isinstance(edit, NoteChanged))
        return {
            **{name: kinds[kind] for name, kind in KINDS.items()},
            **{name: notes[name] for name in ("signature", "metadata")},
        }

    @property
    def figures(self) -> list[tuple[str, int, int]]:
        """What is counted on both sides: its name, before, after."""
        before, after = self.before, self.after
        return [
            ("calls", before.calls, after.calls),
            ("logical bytes", before.storage.logical, after.storage.logical),
            ("backing bytes", before.storage.backing, after.storage.backing),
        ]

    @property
    def state_added(self) -> Storage:
        """Bytes of the names that came and of the memory that came with them."""
        return _only_in(self.after, self.before)

    @property
    def state_freed(self) -> Storage:
        """Bytes of the names that went and of the memory that went with them; a tied copy that stays frees nothing."""
        return _only_in(self.before, self.after)

    @property
    def compares_metadata(self) -> bool:
        return self.before.metadata is not None and self.after.metadata is not None

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable, `schema_version` first."""
        digests = Digests()
        return {
            "schema_version": DIFF_VERSION,
            "equal": self.empty,
            "before": _side(self.before),
            "after": _side(self.after),
            "counts": self.counts,
            "state": {"added": _bytes(self.state_added), "freed": _bytes(self.state_freed)},
            "provenance": [each.to_dict() for each in self.lineage],
            "edits": [edit_to_dict(edit, digests) for edit in self.edits],
            "compares_metadata": self.compares_metadata,
        }


def diff_graphs(one: Comparable, other: Comparable) -> Diff:
    """Compare two graphs.

    Args:
        one, other: a `Program`, `GraphModule`, `ExportedProgram` or `Outline`, or the path of a .pt2 file, of a
            directory that holds a program.pt2, of a run directory (its last graph) or of one graph in it (a .json file).

    Returns:
        The diff. Contents of state are compared where both sides hold it or its digest; metadata where both are programs.

    Raises:
        DiffError: a side cannot be read, or carries a constant that cannot be compared.
    """
    before, after = as_outline(one, "before"), as_outline(other, "after")
    after = _in_terms_of(before, after)
    values = _ValueEdits(before, after)
    edits = (*values.edits, *_state_edits(before, after), *_note_edits(before, after))
    return Diff(before, after, edits, tuple(values.lineage))


def _in_terms_of(before: Outline, after: Outline) -> Outline:
    """`after` with the keys of `before` for the values that both have, and keys of their own for the others."""
    keys = same_values(before, after)
    taken = {value.key for value in before.values}
    for value in after.values:
        if value.key not in keys:
            key = value.key
            while key in taken:
                key += "'"
            taken.add(key)
            keys[value.key] = key
    return replace(
        after,
        values=tuple(
            replace(value, key=keys[value.key], operands=tuple(keys.get(key, key) for key in value.operands))
            for value in after.values
        ),
    )


class _ValueEdits:
    """The edits of values, `after` being in terms of `before`."""

    def __init__(self, before: Outline, after: Outline) -> None:
        self._old = {value.key: value for value in before.values}
        self._new = {value.key: value for value in after.values}
        self._removed = [value for value in before.values if value.key not in self._new]
        self._added = [value for value in after.values if value.key not in self._old]
        self._replaced = self._replacements()
        self.lineage = self._lineage({value.name: value.key for value in before.values})
        self.edits = tuple(self._edits())

    def _replacements(self) -> dict[str, Counter[str]]:
        """For each removed value, what values that stay and make the same call read in its place."""
        removed = {value.key for value in self._removed}
        found: dict[str, Counter[str]] = {key: Counter() for key in removed}
        for key, new in self._new.items():
            old = self._old.get(key)
            if old is not None and old.call[2] == new.call[2]:
                for was, now in zip(old.operands, new.operands, strict=True):
                    if was in removed:
                        found[was][now] += 1
        return found

    def _instead(self, key: str) -> str:
        """The commonest replacement; the first of them where several are."""
        found = self._replaced[key].most_common(1)
        return found[0][0] if found else ""

    def _lineage(self, names: Mapping[str, str]) -> list[Lineage]:
        pairs = [(was, now) for was, found in self._replaced.items() for now in found]
        return find_lineage(self._removed, self._added, names, pairs)

    def _edits(self) -> Iterator[Edit]:
        behind = dict(zip(self._new, [FIRST, *self._new], strict=False))
        instead = {value.key: self._instead(value.key) for value in self._removed}
        yield from (Removed(value, instead[value.key]) for value in self._removed)
        yield from (Added(value, behind[value.key]) for value in self._added)
        stayed = [key for key in self._new if key in self._old]
        for key in stayed:
            old, new = self._old[key], self._new[key]
            follows = tuple(instead.get(operand, operand) for operand in old.operands)
            if (old.arguments, follows) != (new.arguments, new.operands):
                yield Rewired(old, new.arguments, new.operands)
            if old.type != new.type:
                yield Retyped(old, new.type)
            if (old.target, old.module, old.source) != (new.target, new.module, new.source):
                yield Relocated(old, new.target, new.module, new.source)
        place = {key: number for number, key in enumerate(self._old)}
        kept = _longest_ascending([place[key] for key in stayed])
        yield from (Moved(self._old[key], behind[key]) for key in stayed if place[key] not in kept)


def _longest_ascending(numbers: list[int]) -> set[int]:
    """The members of a longest ascending subsequence of distinct numbers (patience sorting)."""
    tops: list[int] = []
    below: dict[int, int | None] = {}
    for number in numbers:
        pile = bisect_left(tops, number)
        below[number] = tops[pile - 1] if pile else None
        tops[pile : pile + 1] = [number]
    found: set[int] = set()
    last = tops[-1] if tops else None
    while last is not None:
        found.add(last)
        last = below[last]
    return found


def _state_edits(before: Outline, after: Outline) -> Iterator[StateChanged]:
    digests = Digests()
    for name in dict.fromkeys([*before.state, *after.state]):
        old, new = before.state.get(name), after.state.get(name)
        if old is None or new is None:
            yield StateChanged(name, old, new)
            continue
        contents = old.type == new.type and not _same_contents(old, new, digests)
        if contents or replace(old, digest="") != replace(new, digest=""):
            yield StateChanged(name, old, new, contents)


def _same_contents(old: Held, new: Held, digests: Digests) -> bool:
    """Whether both hold the same, as far as it is known."""
    if old.tensor is not None and new.tensor is not None:
        places = [(storage_key(each), each.storage_offset(), each.stride()) for each in (old.tensor, new.tensor)]
        if places[0] == places[1]:
            return True
    known = old.contents(digests), new.contents(digests)
    return not all(known) or known[0] == known[1]


def _note_edits(before: Outline, after: Outline) -> Iterator[NoteChanged]:
    sections = [("signature", before.signature, after.signature)]
    if before.metadata is not None and after.metadata is not None:
        sections.append(("metadata", before.metadata, after.metadata))
    for section, old, new in sections:
        for label in dict.fromkeys([*old, *new]):
            if old.get(label) != new.get(label):
                yield NoteChanged(section, label, old.get(label), new.get(label))


def _only_in(one: Outline, other: Outline) -> Storage:
    """Bytes of state of `one` under names that `other` lacks; of memory, where it lacks every name of it."""
    names = {name: held for name, held in one.state.items() if name not in other.state}
    alone = {name: held for name, held in names.items() if not any(share in other.state for share in held.shares)}
    return Storage(storage_of(names).logical, storage_of(alone).backing)


def _side(outline: Outline) -> dict[str, Any]:
    return {"label": outline.label, "values": len(outline.values), "calls": outline.calls, **_bytes(outline.storage)}


def _bytes(storage: Storage) -> dict[str, int]:
    return {"logical_bytes": storage.logical, "backing_bytes": storage.backing}


def new_operations(diff: Diff) -> dict[str, str]:
    """Operations that only `diff.after` makes, each with the first value that makes it."""
    known = {value.target for value in diff.before.values if value.op == CALL}
    found: dict[str, str] = {}
    for value in diff.after.values:
        if value.op == CALL and value.target not in known:
            found.setdefault(value.target, value.name)
    return found
