"""Which value of one graph is which of another, by what they compute, from what, for whom and where; names do not count.

Inputs are the anchors, by argument, and so is the output. From them identity spreads in both directions: a value that
makes the same call with the same operands is the same value, and so is an operand of the same call in the same place
that stands on the same line of the model, or the only call of its kind that a line of the model makes.
What is left, because something next to it changed, goes to the candidate with the same operation that shares most
with it: literals, source line, operands, readers. A value that a pass has added is never taken for one that it found.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from .outline import CALL, INPUT, OUTPUT, STATE, Outline, Value

LOOKED_AT = 16
"""Candidates that share one thing with a value and are compared with it, at most."""

Signature = tuple[object, ...]


def same_values(one: Outline, other: Outline) -> dict[str, str]:
    """Key in `one` by key in `other`, for every value that both have.

    Takes time in the order of the graphs' sizes, a few times `LOOKED_AT` comparisons for each value that changed.
    """
    matching = _Matching(one, other)
    matching.anchor()
    while matching.forward(_with_site) or matching.backward() or matching.only_ones():
        pass
    while matching.forward(_anywhere) or matching.backward():
        pass
    matching.liken()
    return matching.found


def _with_site(value: Value, operands: Iterable[str]) -> Signature:
    return (*value.call, *operands, value.site)


def _anywhere(value: Value, operands: Iterable[str]) -> Signature:
    return (*value.call, *operands)


class _Side:
    """One outline, with what reads what."""

    def __init__(self, outline: Outline) -> None:
        self.values = {value.key: value for value in outline.values}
        self.readers: defaultdict[str, list[str]] = defaultdict(list)
        self.alike: defaultdict[tuple[object, ...], deque[Value]] = defaultdict(deque)
        for value in outline.values:
            self.alike[value.op, value.target, value.site].append(value)
            for operand in value.operands:
                self.readers[operand].append(value.key)


class _Matching:
    """What has been found so far.

    Attributes:
        found: key in `one` by key in `other`.
    """

    def __init__(self, one: Outline, other: Outline) -> None:
        self._one, self._other = _Side(one), _Side(other)
        self.found: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._indices: dict[Callable[[Value, Iterable[str]], Signature], dict[Signature, deque[Value]]] = {}

    def anchor(self) -> None:
        """Inputs by argument, those left by place, and the output."""
        ours, theirs = self._inputs(self._one), self._inputs(self._other)
        for name in theirs.keys() & ours.keys():
            self._match(ours[name], theirs[name])
        left = [value for name, value in ours.items() if name not in theirs]
        for value, twin in zip((each for name, each in theirs.items() if name not in ours), left, strict=False):
            self._match(twin, value)
        outputs = [next(value for value in side.values.values() if value.op == OUTPUT) for side in (self._one, self._other)]
        self._match(*outputs)

    @staticmethod
    def _inputs(side: _Side) -> dict[str, Value]:
        return {value.target: value for value in side.values.values() if value.op == INPUT}

    def _match(self, ours: Value, theirs: Value) -> None:
        self.found[theirs.key] = ours.key
        self._taken[ours.key] = theirs.key

    def _known(self, operand: str) -> str:
        """What `one` calls an operand of `other`; "" where it has none."""
        return operand if operand.startswith(STATE) else self.found.get(operand, "")

    def forward(self, signature: Callable[[Value, Iterable[str]], Signature]) -> bool:
        """Match equal calls of equal operands; whether there were any."""
        count = len(self.found)
        for value in self._other.values.values():
            self._follow(value, signature)
        return len(self.found) > count

    def _follow(self, value: Value, signature: Callable[[Value, Iterable[str]], Signature]) -> bool:
        if value.key in self.found or value.op != CALL:
            return False
        operands = [self._known(operand) for operand in value.operands]
        candidates = self._index(signature).get(signature(value, operands)) if all(operands) else None
        while candidates and candidates[0].key in self._taken:
            candidates.popleft()
        if not candidates:
            return False
        self._match(candidates.popleft(), value)
        return True

    def _index(self, signature: Callable[[Value, Iterable[str]], Signature]) -> dict[Signature, deque[Value]]:
        if signature not in self._indices:
            index = self._indices[signature] = defaultdict(deque)
            for value in self._one.values.values():
                if value.op == CALL:
                    index[signature(value, value.operands)].append(value)
        return self._indices[signature]

    def backward(self) -> bool:
        """Match what equal calls read in the same places; whether there was anything."""
        count = len(self.found)
        for value in reversed(self._other.values.values()):
            if value.key in self.found:
                self._operands_of(value)
        return len(self.found) > count

    def _operands_of(self, value: Value) -> list[Value]:
        """Match the operands of a matched value; those that were."""
        twin = self._one.values[self.found[value.key]]
        if twin.call != value.call:
            return []
        matched = []
        for ours, theirs in zip(twin.operands, value.operands, strict=True):
            one, other = self._one.values.get(ours), self._other.values.get(theirs)
            if not (one and other) or ours in self._taken or theirs in self.found:
                continue
            if (one.call, one.site) == (other.call, other.site) and _may_be(one, other):
                self._match(one, other)
                matched.append(other)
        return matched

    def only_ones(self) -> bool:
        """Match the only calls of a kind that a line of the model makes on both sides; whether there were any."""
        kinds: defaultdict[object, tuple[list[Value], list[Value]]] = defaultdict(lambda: ([], []))
        for number, (side, gone) in enumerate(((self._one, self._taken), (self._other, self.found))):
            for value in side.values.values():
                if value.key not in gone and value.op == CALL and value.source:
                    kinds[value.call, value.site, value.made_by, value.stands_for][number].append(value)
        pairs = [(ours[0], theirs[0]) for ours, theirs in kinds.values() if len(ours) == len(theirs) == 1]
        for one, other in pairs:
            self._match(one, other)
        return bool(pairs)

    def liken(self) -> None:
        """Match what is left with what is most like it, in order, and spread each find at once."""
        for value in self._other.values.values():
            if value.key not in self.found and value.op == CALL and (twin := self._most_like(value)):
                self._match(twin, value)
                self._spread(value)

    def _spread(self, value: Value) -> None:
        changed = [value]
        while changed:
            each = changed.pop()
            changed += self._operands_of(each)
            for key in self._other.readers[each.key]:
                reader = self._other.values[key]
                if self._follow(reader, _with_site) or self._follow(reader, _anywhere):
                    changed.append(reader)

    def _most_like(self, value: Value) -> Value | None:
        """The best candidate, if the value is the best one for it, too."""
        ours = _candidates(value, self._other, self._one, self.found, self._taken)
        best = max(ours, key=lambda each: self._likeness(each, value), default=None)
        if best is None or not (score := self._likeness(best, value)):
            return None
        rivals = _candidates(best, self._one, self._other, self._taken, self.found)
        return best if all(self._likeness(best, rival) <= score for rival in rivals) else None

    def _likeness(self, ours: Value, theirs: Value) -> float:
        """How much the two share; 0 where neither line, operands nor readers speak for them."""
        operands = [self._known(operand) for operand in theirs.operands]
        shared = sum(key in ours.operands for key in operands if key) / max(len(ours.operands), len(operands), 1)
        readers = {self.found.get(key, "") for key in self._other.readers[theirs.key]} & {*self._one.readers[ours.key]}
        same_line = ours.site == theirs.site != ("", "")
        evidence = 3.0 * same_line + 2.0 * shared + 2.0 * bool(readers)
        return evidence and evidence + 2.0 * (ours.arguments == theirs.arguments) + (ours.type == theirs.type)


def _may_be(ours: Value, theirs: Value) -> bool:
    """Whether both were found by the passes, or both were added by one for the same."""
    return (ours.made_by, ours.stands_for) == (theirs.made_by, theirs.stands_for)


def _candidates(value: Value, here: _Side, there: _Side, twins: Mapping[str, str], gone: Mapping[str, str]) -> list[Value]:
    """Values of the other side with the same operation that share an operand, a reader or the line with `value`.

    Args:
        value: of the side `here`.
        twins: key there by key here.
        gone: keys there that are matched.
    """
    operands = [operand if operand.startswith(STATE) else twins.get(operand, "") for operand in value.operands]
    readers = [there.values[twins[key]] for key in here.readers[value.key] if key in twins]
    lines = there.alike[value.op, value.target, value.site]
    while lines and lines[0].key in gone:
        lines.popleft()
    groups = [
        *((there.values[key] for key in there.readers[operand]) for operand in operands if operand),
        *((there.values[key] for key in reader.operands if key in there.values) for reader in readers),
        lines,
    ]
    found: dict[str, Value] = {}
    for group in groups:
        fits = (each for each in group if each.key not in gone and each.call[:2] == value.call[:2] and _may_be(each, value))
        found |= {each.key: each for each in islice(fits, LOOKED_AT)}
    return list(found.values())
