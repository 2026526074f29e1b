"""The edits that make one outline into another, and applying them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ..analysis.fingerprint import Digests
from .outline import Held, Outline, Value, held_to_dict, value_to_dict

FIRST = ""
"""Stands for the place before every value."""


@dataclass(frozen=True)
class Added:
    """A value that was not there. Its operands are keys after the edits; `behind` is the one it stands behind, or `FIRST`."""

    value: Value
    behind: str


@dataclass(frozen=True)
class Removed:
    """A value that is gone. Every reader that stays reads `instead`, unless it is rewired; "" where none stays."""

    value: Value
    instead: str = ""


@dataclass(frozen=True)
class Rewired:
    """A value that makes its call with other operands or literals, beyond what `Removed.instead` says."""

    before: Value
    arguments: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Retyped:
    """A value of other dtype, sizes, strides or device."""

    before: Value
    type: str


@dataclass(frozen=True)
class Moved:
    """A value computed earlier or later than before: behind another one, or `FIRST`."""

    value: Value
    behind: str


@dataclass(frozen=True)
class Relocated:
    """A value that says it comes from another module or line; or an input under another name."""

    before: Value
    target: str
    module: str
    source: str


@dataclass(frozen=True)
class StateChanged:
    """State that came (`before` is None), went (`after` is None), or is not what it was.

    Attributes:
        contents: whether the contents of what stayed differ.
    """

    name: str
    before: Held | None
    after: Held | None
    contents: bool = False


@dataclass(frozen=True)
class NoteChanged:
    """A line of the signature or the metadata that came, went or changed."""

    section: str
    label: str
    before: str | None
    after: str | None


Edit = Added | Removed | Rewired | Retyped | Moved | Relocated | StateChanged | NoteChanged


def apply(edits: Sequence[Edit], outline: Outline) -> Outline:
    """The outline that the edits, which a diff found for `outline`, make of it; its values keep their keys.

    Raises:
        KeyError: the edits are those of another outline.
    """
    values = {value.key: value for value in outline.values}
    instead = {edit.value.key: edit.instead for edit in edits if isinstance(edit, Removed)}
    for key, value in values.items():
        values[key] = replace(value, operands=tuple(instead.get(operand, operand) for operand in value.operands))
    placed = {edit.value.key: edit.behind for edit in edits if isinstance(edit, Added | Moved)}
    order = [key for key in values if key not in instead and key not in placed]
    for edit in edits:
        match edit:
            case Added(value=value):
                values[value.key] = value
            case Removed(value=value):
                del values[value.key]
            case Rewired(before=value):
                values[value.key] = replace(values[value.key], arguments=edit.arguments, operands=edit.operands)
            case Retyped(before=value):
                values[value.key] = replace(values[value.key], type=edit.type)
            case Relocated(before=value):
                values[value.key] = replace(values[value.key], target=edit.target, module=edit.module, source=edit.source)
    ordered = _placed(order, placed)
    return replace(outline, values=tuple(values[key] for key in ordered), **_tables(edits, outline))


def _placed(order: Sequence[str], placed: dict[str, str]) -> list[str]:
    """`order` with every key of `placed` behind what it says; each names one that is in order or placed before it."""
    following: dict[str, list[str]] = {}
    for key, behind in placed.items():
        following.setdefault(behind, []).append(key)
    result: list[str] = []
    waiting = [*reversed(order), *reversed(following.get(FIRST, []))]
    while waiting:
        key = waiting.pop()
        result.append(key)
        waiting += reversed(following.get(key, []))
    return result


def _tables(edits: Sequence[Edit], outline: Outline) -> dict[str, Any]:
    state, notes = dict(outline.state), {"signature": dict(outline.signature), "metadata": dict(outline.metadata or {})}
    for edit in edits:
        if isinstance(edit, StateChanged):
            state.pop(edit.name, None)
            if edit.after is not None:
                state[edit.name] = edit.after
        elif isinstance(edit, NoteChanged):
            notes[edit.section].pop(edit.label, None)
            if edit.after is not None:
                notes[edit.section][edit.label] = edit.after
    metadata = None if outline.metadata is None else MappingProxyType(notes["metadata"])
    return {"state": MappingProxyType(state), "signature": MappingProxyType(notes["signature"]), "metadata": metadata}


def edit_to_dict(edit: Edit, digests: Digests) -> dict[str, Any]:
    """JSON-serialisable; values by key."""
    match edit:
        case Added():
            return {"edit": "added", "value": value_to_dict(edit.value), "behind": edit.behind}
        case Removed():
            return {"edit": "removed", "value": value_to_dict(edit.value), "instead": edit.instead}
        case Rewired():
            before = {"arguments": edit.before.arguments, "operands": list(edit.before.operands)}
            after = {"arguments": edit.arguments, "operands": list(edit.operands)}
            return {"edit": "rewired", "key": edit.before.key, "before": before, "after": after}
        case Retyped():
            return {"edit": "retyped", "key": edit.before.key, "before": edit.before.type, "after": edit.type}
        case Moved():
            return {"edit": "moved", "key": edit.value.key, "behind": edit.behind}
        case Relocated():
            before = {name: getattr(edit.before, name) for name in ("target", "module", "source")}
            after = {"target": edit.target, "module": edit.module, "source": edit.source}
            return {"edit": "relocated", "key": edit.before.key, "before": before, "after": after}
        case StateChanged():
            sides = [None if held is None else held_to_dict(held, digests) for held in (edit.before, edit.after)]
            return {"edit": "state", "name": edit.name, "before": sides[0], "after": sides[1], "contents": edit.contents}
        case NoteChanged():
            return {"edit": edit.section, "label": edit.label, "before": edit.before, "after": edit.after}
