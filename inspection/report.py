"""The report of one run: text for people, a dictionary with a schema version for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from .probe_lines import probe_lines

SCHEMA_VERSION = 1
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")
"""The JSON Schema of `Report.to_dict` and of a run directory's report.json."""


@dataclass(frozen=True)
class Report:
    """What a run did, refused and showed.

    `str(report)` is for people; `to_dict()` is JSON-serialisable, `schema_version` first.
    """

    data: Mapping[str, Any]

    MEASURED: ClassVar = ("torch", "timing")
    """Keys of what depends on the machine and the moment alone."""

    @property
    def measured(self) -> dict[str, Any]:
        """The part of `to_dict` under the keys `MEASURED`."""
        return {name: value for name, value in self.to_dict().items() if name in self.MEASURED}

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "torch": torch.__version__, **self.data}

    def __str__(self) -> str:
        parts = (
            self._head(),
            self._rewrites(),
            self._refusals(),
            self._blockers(),
            self._decisions(),
            self._verification(),
            self._trials(),
            self._timing(),
            self._fixed(),
        )
        return "\n".join(line for part in parts for line in part)

    def _head(self) -> list[str]:
        before, after = self.data["storage"]["before"], self.data["storage"]["after"]
        lines = [f"foldfx: {self.data['status']}"]
        for kind in ("logical", "backing"):
            change = after[kind] - before[kind]
            percent = 100 * change / before[kind] if before[kind] else 0.0
            lines.append(f"  {kind:8} bytes {before[kind]:>14,} → {after[kind]:>14,}  ({change:+,}, {percent:+.1f} %)")
        for name, domain in self.data["tokens"].items():
            some = "" if domain["reachable"] == domain["size"] else f", {domain['reachable']:,} of them reachable"
            lines.append(f"  token input {name}: {domain['size']:,} ids{some} ({domain['because']})")
        observables = self.data["observables"]
        return lines + ([f"  observables, compared like outputs: {', '.join(observables)}"] if observables else [])

    def _rewrites(self) -> list[str]:
        classes = [f"  {text}" for each in self.data["rewrites"] for rule in each["classes"] for text in rule["evidence"]]
        kernels = classes + [
            f"  {claim['node']} runs on {claim['kernel']} ({claim['provider']})" for claim in self.data["kernels"]
        ]
        return self._outcomes("rewrites", ("applied",)) + kernels

    def _refusals(self) -> list[str]:
        return self._outcomes("not done", ("refused", "no_match", "rejected", "disabled"))

    def _outcomes(self, title: str, statuses: Sequence[str]) -> list[str]:
        found = [outcome for outcome in self.data["outcomes"] if outcome["status"] in statuses]
        lines = [f"  [{each['status']}] {each['pass']}, {each['subject']}: {each['reason']}" for each in found]
        return [title, *lines] if lines else []

    def _blockers(self) -> list[str]:
        found = [f"  {text}" for text in self.data["blockers"]]
        return ["where token-only values end", *found] if found else []

    def _decisions(self) -> list[str]:
        lines = []
        for each in self.data["decisions"]:
            over = "token ids alone" if each["token_only"] else "context"
            feeds = f", feeds {', '.join(each['feeds'])}" if each["feeds"] else ""
            lines.append(f"  {each['node']} ({each['at']}): {each['kind']} of {each['score']}, over {over}{feeds}")
            lines += [f"    {text}" for text in probe_lines(each["probe"])]
        return ["where tables and floats become decisions", *lines] if lines else []

    def _verification(self) -> list[str]:
        found = self.data["verification"]
        outputs = found["outputs"]
        lines = [
            f"verification: {found['verdict']}",
            f"  complete outputs of {found['examples']} example(s): {figures_text(outputs)}",
        ]
        for layout in found["layouts"]:
            what = f"{COMPARED[layout['kind']]} {layout['table']}, {layout['layout']} {layout['shape']}"
            lines.append(f"  {what}: {covered(layout)}, {figures_text(layout)}")
        for probe, said in found["probes"].items():
            lines.append(f"  {probe}: {said}")
        for name, ranks in found["ranks"].items():
            lines.append(f"  ids {name}: verified with {', '.join(map(str, ranks))} dimension(s)")
        return lines + [f"  {text}" for text in found["because"]]

    def _trials(self) -> list[str]:
        """The candidates of the bisection, where there was one."""
        trials = self.data["trials"]
        if len(trials) < 2:
            return []
        lines = [f"  {', '.join(each['rewrites']) or 'no rewrite'}: {each['why'] or 'agrees'}" for each in trials]
        return ["candidates tried", *lines]

    def _timing(self) -> list[str]:
        return [f"latency: {self.data['timing']['text']}"] if self.data["timing"] else []

    def _fixed(self) -> list[str]:
        fixed = [f"  {each['input']}: {each['what']}" for each in self.data["specialised"]]
        return (["fixed at capture"] if fixed else []) + fixed


COMPARED = {"table": "table of", "decision": "decision"}


def covered(layout: Mapping[str, Any]) -> str:
    """How much of the domain a layout of a verification compared, in words."""
    if layout["tokens"] == layout["domain"]:
        return f"full domain of {layout['domain']:,} ids"
    return f"sampled {layout['tokens']:,} of {layout['domain']:,} ids" if layout["tokens"] else "no rows"


def figures_text(figures: Mapping[str, Any]) -> str:
    """How far two sides were apart, in words."""
    if figures["bitwise"]:
        return "bitwise equal"
    equal = "numerically equal, " if figures["exact"] else ""
    return f"{equal}max-abs {_number(figures['max_abs'])}, relative L2 {_number(figures['relative_l2'])}"


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.2e}"
