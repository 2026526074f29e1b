"""What a change may do, stated in a file: rules that a diff, and the report of its run, are held to."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import DiffError
from ..lowering.reference import Reference
from .diff import Diff, new_operations

MIB = 1 << 20


@dataclass(frozen=True)
class Policy:
    """Rules; None where there is none.

    Attributes:
        new_operations: operations that may appear where there were none, as "aten.embedding.default"; no others may.
        max_growth_mib: by how many MiB logical and backing bytes of state may each grow; negative: must shrink by.
        numerics_changing: False: every kernel must be the reference or be reported as preserving numerics.
        max_fragile_tokens: how many tokens may be fragile, over all decisions of the report that were enumerated.
    """

    new_operations: tuple[str, ...] | None = None
    max_growth_mib: float | None = None
    numerics_changing: bool | None = None
    max_fragile_tokens: int | None = None

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read a TOML file whose keys are the rules.

        Raises:
            DiffError: there is no such file, it is not TOML, or it has an unknown rule or a value of the wrong kind.
        """
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DiffError(f"there is no policy {path}, or it is no file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DiffError(f"policy {path} is not TOML: {error}") from error
        known = {each.name for each in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise DiffError(f"policy {path} has unknown rules {unknown}; there are {sorted(known)}")
        for name, value in data.items():
            is_kind, kind = _KINDS[name]
            if not is_kind(value):
                raise DiffError(f"policy {path}: {name} must be {kind}, got {value!r}")
        rules: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**rules)

    def violations(self, diff: Diff, report: Mapping[str, Any] | None) -> list[str]:
        """What breaks the rules, a sentence each.

        Args:
            diff: the change.
            report: the report.json of the run that made it; None where there is none.

        Raises:
            DiffError: a rule needs a report and there is none.
        """
        return [
            *self._operations(diff),
            *self._growth(diff),
            *self._kernels(report),
            *self._fragile(report),
        ]

    def _operations(self, diff: Diff) -> list[str]:
        if self.new_operations is None:
            return []
        found = new_operations(diff)
        return [
            f"new_operations: {target} is new (first: {name}) and not among those allowed"
            for target, name in found.items()
            if target not in self.new_operations
        ]

    def _growth(self, diff: Diff) -> list[str]:
        if self.max_growth_mib is None:
            return []
        before, after = diff.before.storage, diff.after.storage
        grown = {"logical": after.logical - before.logical, "backing": after.backing - before.backing}
        return [
            f"max_growth_mib: {kind} bytes change by {count / MIB:+,.3f} MiB ({count:+,} B), allowed are {self.max_growth_mib}"
            for kind, count in grown.items()
            if count > self.max_growth_mib * MIB
        ]

    def _kernels(self, report: Mapping[str, Any] | None) -> list[str]:
        if self.numerics_changing is not False:
            return []
        return [
            f"numerics_changing: {claim['node']} runs on {claim['kernel']} of provider {claim['provider']}, which the report "
            "does not call numerics-preserving"
            for claim in _of(report, "numerics_changing")["kernels"]
            if claim["provider"] != Reference.name and not claim.get("preserves_numerics", False)
        ]

    def _fragile(self, report: Mapping[str, Any] | None) -> list[str]:
        if self.max_fragile_tokens is None:
            return []
        probes = {each["node"]: each["probe"] or {} for each in _of(report, "max_fragile_tokens")["decisions"]}
        fragile = {node: probe["fragile"] for node, probe in probes.items() if probe.get("fragile")}
        if (count := sum(fragile.values())) <= self.max_fragile_tokens:
            return []
        named = ", ".join(f"{number:,} of {node}" for node, number in fragile.items())
        return [f"max_fragile_tokens: {count:,} tokens are fragile ({named}), at most {self.max_fragile_tokens:,} allowed"]


def _of(report: Mapping[str, Any] | None, rule: str) -> Mapping[str, Any]:
    if report is None:
        raise DiffError(f"{rule} reads the report of a run; name its directory (compile with run_dir=) as the second side")
    return report


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "new_operations": (
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        'a list of operations, such as ["aten.embedding.default"]',
    ),
    "max_growth_mib": (_is_number, "a number of MiB"),
    "numerics_changing": (lambda value: isinstance(value, bool), "true or false"),
    "max_fragile_tokens": (lambda value: _is_number(value) and isinstance(value, int), "a whole number"),
}
