"""The graphs of a run and what differs between them, as compact data that the page's script draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..diff import Diff
from ..edits import Added, Moved, Relocated, Removed, Retyped, Rewired
from ..outline import INPUT, OUTPUT, STATE, Held, Outline, Value

Facts = Mapping[str, Any]
Memory = Mapping[str, Sequence[Sequence[str]]]
Comparison = tuple[int, int, Diff]
"""Places of two graphs among the steps, and what differs between them."""

_WORDS = {Rewired: "rewired", Retyped: "retyped", Relocated: "relocated", Moved: "moved"}


class Strings:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def all(self) -> list[str]:
        return list(self._places)


def graph_data(
    steps: Sequence[tuple[str, Outline]], comparisons: Sequence[Comparison], facts: Facts, memory: Memory
) -> dict[str, Any]:
    """What `page.js` reads.

    Args:
        steps: what was done and the graph it left.
        comparisons: places in `steps`, and what differs between them.
        facts: `facts_to_dict` of the first graph.
        memory: `memory_to_dict` of the first graph.

    Returns:
        strings: other texts by number.
        values: [name, code, then by number type, module, source and pass, then operands and what it stands for], each
            once; a step that leaves a value as it is refers to the same one.
        state: [name, kind, type, bytes, names that share its memory], each once.
        steps: name, places in `values` and in `state`.
        comparisons: places of two steps, and parts: a number of equal lines, or [place in the one or -1, place in the
            other or -1, mark, words].
        facts: by name [what it depends on, layout, why, where, names it stands on, whether it is proved].
        memory: as given.
    """
    strings = Strings()
    places: dict[tuple[Any, ...], int] = {}
    held_places: dict[tuple[Any, ...], int] = {}
    shown = []
    for name, outline in steps:
        names = {value.key: value.name for value in outline.values}
        rows = [_place(places, _row(value, names, strings)) for value in outline.values]
        state = [_place(held_places, (each, *_held(held))) for each, held in outline.state.items()]
        shown.append({"name": name, "rows": rows, "state": state})
    found = [{"before": one, "after": other, "parts": list(_parts(diff))} for one, other, diff in comparisons]
    proofs = {each["name"]: _fact(each, strings) for each in facts.get("values", ())}
    return {
        "strings": strings.all(),
        "values": list(places),
        "state": list(held_places),
        "steps": shown,
        "comparisons": found,
        "facts": proofs,
        "memory": {name: [list(each) for each in roots] for name, roots in memory.items()},
    }


def _place(places: dict[tuple[Any, ...], int], row: tuple[Any, ...]) -> int:
    return places.setdefault(row, len(places))


def _held(held: Held) -> tuple[Any, ...]:
    return held.kind, held.type, held.bytes, held.shares


def _row(value: Value, names: Mapping[str, str], strings: Strings) -> tuple[Any, ...]:
    operands = [key if key.startswith(STATE) else names[key] for key in value.operands]
    texts = [strings(text) for text in (value.type, value.module, value.source, value.made_by)]
    standing = tuple(map(strings, value.stands_for))
    return value.name, code_of(value, operands), *texts, tuple(map(strings, operands)), standing


def code_of(value: Value, operands: Sequence[str]) -> str:
    """The line of code of a value, over operands by name."""
    if value.op == INPUT:
        return f"{value.name} = input {value.target}"
    arguments = value.arguments.format(*(each.removeprefix(STATE) for each in operands))
    return (
        f"return {arguments}" if value.op == OUTPUT else f"{value.name} = {value.target.removesuffix('.default')}({arguments})"
    )


def _fact(fact: Mapping[str, Any], strings: Strings) -> list[Any]:
    sources = " + ".join(fact["depends_on"]) or "constant"
    proved = fact["token_only"] or not fact["depends_on"]
    parents = [strings(name) for name in fact.get("stands_on", ())]
    return [strings(sources), strings(fact["rows"] or ""), strings(fact["because"]), strings(fact["at"]), parents, int(proved)]


def _parts(diff: Diff) -> Iterator[int | list[Any]]:
    """Both graphs line by line: what stays in place side by side, and between that what went beside what came."""
    words: dict[str, list[str]] = {}
    moved: set[str] = set()
    for edit in diff.edits:
        if isinstance(edit, Rewired | Retyped | Relocated):
            words.setdefault(edit.before.key, []).append(_WORDS[type(edit)])
        elif isinstance(edit, Moved):
            words.setdefault(edit.value.key, []).append(_WORDS[Moved])
            moved.add(edit.value.key)
    leaves = moved | {edit.value.key for edit in diff.edits if isinstance(edit, Removed)}
    comes = moved | {edit.value.key for edit in diff.edits if isinstance(edit, Added)}
    loose: tuple[list[int], list[int]] = ([], [])
    equal = left = right = 0
    before, after = diff.before.values, diff.after.values
    while left < len(before) or right < len(after):
        if left < len(before) and before[left].key in leaves:
            loose[0].append(left)
            left += 1
        elif right < len(after) and after[right].key in comes:
            loose[1].append(right)
            right += 1
        else:
            if any(loose):
                yield from _flushed(equal, loose, diff, words)
                equal, loose = 0, ([], [])
            if said := words.get(before[left].key):
                yield from [equal] if equal else []
                yield [left, right, "~~", ", ".join(said)]
                equal = 0
            else:
                equal += 1
            left, right = left + 1, right + 1
    yield from _flushed(equal, loose, diff, words)


def _flushed(
    equal: int, loose: tuple[list[int], list[int]], diff: Diff, words: Mapping[str, list[str]]
) -> Iterator[int | list[Any]]:
    if equal:
        yield equal
    for one, other in zip_longest(*loose, fillvalue=-1):
        keys = [diff.before.values[one].key if one >= 0 else "", diff.after.values[other].key if other >= 0 else ""]
        marks = [">" if keys[0] in words else "-" if one >= 0 else " ", ">" if keys[1] in words else "+" if other >= 0 else " "]
        yield [one, other, "".join(marks), ", ".join(dict.fromkeys(word for key in keys for word in words.get(key, ())))]
