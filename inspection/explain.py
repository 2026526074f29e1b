"""What a run did with one value, and why a pass did nothing with it, in plain words, from the run's directory alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.facts import proof
from ..errors import DiffError
from .diff import Diff, diff_graphs
from .diff_text import Names, printable
from .edits import Moved, Removed, Retyped, Rewired
from .load_outline import load_outline
from .outline import Value
from .probe_lines import probe_lines
from .report import covered, figures_text
from .run_layout import graphs_of, read_facts, read_report

NAMED = 8
"""Other values, or outcomes of a pass, that are named, at most."""


def explain(folder: Path, name: str) -> str:
    """What a value is, what it depends on, what became of it, and what was tried and shown.

    Args:
        folder: a run directory.
        name: of a value of any of its graphs.

    Raises:
        DiffError: the directory is not one, or no graph has a value of that name.
    """
    run = _Run(folder)
    value, at = run.find(name)
    lines = [Names(run.graphs[at]).line(value)]
    lines += run.dependence(name) if at == 0 else [f"added by {value.made_by or run.steps[at]}, for {_list(value.stands_for)}"]
    lines += run.fate(value.key, at)
    lines += _titled("passes", (_outcome(each) for each in run.report["outcomes"] if _concerns(each, name)))
    lines += _titled("tables", run.tables(name))
    lines += _titled("where token-only values end", (each for each in run.report["blockers"] if each.startswith(f"{name} (")))
    lines += _titled("decision", run.decision(name))
    lines += _titled("verified", run.evidence(name))
    return "\n".join(map(printable, lines))


def explain_why_not(folder: Path, pass_name: str, name: str) -> str:
    """Why a pass did nothing with a value, or that it did something.

    Args:
        folder: a run directory.
        pass_name: the pass.
        name: of a value of the captured graph or of a later one.

    Raises:
        DiffError: the directory is not one, or no graph has a value of that name.
    """
    run = _Run(folder)
    value, at = run.find(name)
    said = [each for each in run.report["outcomes"] if each["pass"] == pass_name]
    if pass_name not in run.steps and not said:
        return f"{pass_name} is no pass of this run; there were {_list(run.steps[1:])}"
    if about := [each for each in said if _concerns(each, name) or each["status"] == "disabled"]:
        return "\n".join(printable(_outcome(each)) for each in about)
    lines = [f"no rule application of {pass_name} was about {name}"]
    if pass_name in run.steps:
        lines += run.changes(pass_name, value.key, at)
    if at == 0:
        lines += run.dependence(name)
    shown = [_outcome(each) for each in said[:NAMED]] + ([f"… {len(said) - NAMED} more"] if len(said) > NAMED else [])
    return "\n".join(map(printable, [*lines, *_titled(f"what {pass_name} did say", shown)]))


@dataclass(frozen=True)
class _Step:
    """What happened to one value between two graphs: its key in the second, "" where it is gone, and what to say."""

    key: str
    says: str


class _Run:
    """The files of a run directory."""

    def __init__(self, folder: Path) -> None:
        self.report, self._facts = read_report(folder), read_facts(folder)
        self.graphs = [load_outline(path) for path in graphs_of(folder)]
        self.steps = [each["step"] for each in self.report["graphs"]]
        self._diffs: dict[int, Diff] = {}

    def find(self, name: str) -> tuple[Value, int]:
        """The value called `name` in the first graph that has one, and which graph that is."""
        for number, graph in enumerate(self.graphs):
            for value in graph.values:
                if value.name == name:
                    return value, number
        near = [value.name for value in self.graphs[0].values if name in value.name] or [v.name for v in self.graphs[0].values]
        raise DiffError(f"no graph of the run has a value {name!r}; did you mean one of {near[:NAMED]}?")

    def dependence(self, name: str) -> list[str]:
        """The proof that a value of the captured graph is token-only or constant, or the way to what it depends on else."""
        fact = self._facts[name]
        layout = f", laid out {fact['rows']}" if fact["rows"] is not None else ""
        chain = proof(name, lambda each: self._facts[each]["stands_on"], self._proved)
        steps = [f"  {each} ({self._facts[each]['at']}): {self._facts[each]['because']}" for each in chain]
        return [f"depends on {' + '.join(fact['depends_on']) or 'nothing: it is constant'}{layout}", *steps]

    def _proved(self, name: str) -> bool:
        return bool(self._facts[name]["token_only"]) or not self._facts[name]["depends_on"]

    def _diff(self, number: int) -> Diff:
        """Between graph `number` and the one before."""
        if number not in self._diffs:
            self._diffs[number] = diff_graphs(self.graphs[number - 1], self.graphs[number])
        return self._diffs[number]

    def fate(self, key: str, at: int) -> list[str]:
        """What each step did to a value, and then to what took its place."""
        lines = []
        for number in range(at + 1, len(self.graphs)):
            step = self._step(number, key)
            if step.says:
                lines.append(f"  {self.steps[number]}: {step.says}")
            if not step.key:
                break
            key = step.key
        return ["what became of it", *(lines or ["  it stayed as it is"])]

    def changes(self, pass_name: str, key: str, at: int) -> list[str]:
        """What the step of one pass did to a value, or to what had taken its place."""
        for number in range(at + 1, len(self.graphs)):
            step = self._step(number, key)
            if self.steps[number] == pass_name:
                return [f"but in its step {step.says}"] if step.says else ["its step left the value as it was"]
            if not step.key:
                return [f"{self.steps[number]} had removed it before: {step.says}"]
            key = step.key
        return [f"it came after {pass_name} had run"]

    def _step(self, number: int, key: str) -> _Step:
        diff = self._diff(number)
        names = Names(diff.before, diff.after)
        own = dict(zip((each.key for each in diff.after.values), self.graphs[number].values, strict=True))
        for edit in diff.edits:
            if isinstance(edit, Removed) and edit.value.key == key:
                group = next(each for each in diff.lineage if key in each.before)
                became = f"{names.several(group.before)} → {names.several(group.after) or 'nothing'}"
                reads = f"; its readers take {names[edit.instead]}" if edit.instead else ""
                next_key = own[edit.instead].key if edit.instead in own else ""
                return _Step(next_key, f"{names[key]} is gone, {group.kind}: {became}{reads}")
        words = [_CHANGES[type(edit)] for edit in diff.edits if isinstance(edit, Rewired | Retyped) and edit.before.key == key]
        words += ["moved" for edit in diff.edits if isinstance(edit, Moved) and edit.value.key == key]
        return _Step(own[key].key, f"{names[key]} is {' and '.join(words)}" if words else "")

    def tables(self, name: str) -> Iterator[str]:
        for rewrite in self.report["rewrites"]:
            for table in rewrite["tables"]:
                if name in [value["name"] for value in table["values"]] or table["state"] == name:
                    held = ", ".join(f"{value['name']} (width {value['width']:,})" for value in table["values"])
                    yield f"{table['state']}: {table['rows']:,} rows of {held}; stored {table['stored']}; {rewrite['balance']}"

    def decision(self, name: str) -> Iterator[str]:
        for each in self.report["decisions"]:
            if each["node"] == name:
                over = "token ids alone" if each["token_only"] else "context"
                yield f"{each['kind']} of {each['score']}, over {over}"
                yield from probe_lines(each["probe"])

    def evidence(self, name: str) -> Iterator[str]:
        for each in self.report["verification"]["layouts"]:
            if each["table"] == name:
                yield f"{each['kind']}, {each['layout']} {each['shape']}: {covered(each)}, {figures_text(each)}"


_CHANGES: Mapping[type, str] = {Rewired: "rewired", Retyped: "retyped"}


def _concerns(outcome: Mapping[str, Any], name: str) -> bool:
    return name in outcome["nodes"]


def _outcome(outcome: Mapping[str, Any]) -> str:
    return f"[{outcome['status']}] {outcome['pass']}, {outcome['subject']}: {outcome['reason']}"


def _titled(title: str, lines: Any) -> list[str]:
    found = [f"  {line}" for line in lines]
    return [title, *found] if found else []


def _list(names: Any) -> str:
    return ", ".join(names) or "nothing"
