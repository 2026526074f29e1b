"""Whether the evidence of a run still holds for its modules, as they are when asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from ...analysis.example import Example, as_examples
from ...analysis.fingerprint import Digests, Mark, changes, digest_of, marks_of
from ...analysis.observables import observed
from ...errors import CaptureError
from ..pipeline import Run
from ..tables.tabulate import Progress
from ..verify import Verifier, require_calls
from .configuration import disturbances, held_tensors, plain_attributes
from .evidence import Verification
from .settings import changed_settings, numerical_settings

SHOWN = 8
"""Reasons that a printed `Validity` lists."""


class State(StrEnum):
    """`stale`: no evidence holds for the modules as they are. `historical`: it was measured under other settings."""

    VERIFIED = "verified"
    HISTORICAL = "historical"
    STALE = "stale"


@dataclass(frozen=True)
class Validity:
    """Whether evidence holds now.

    Attributes:
        state: see `State`.
        which: what changed since, each as "name: what", e.g. "original embedding.weight: contents"; empty where verified.
    """

    state: State
    which: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = [f"and {len(self.which) - SHOWN} more"] if len(self.which) > SHOWN else []
        return "\n  ".join([str(self.state), *self.which[:SHOWN], *more])

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return {"state": str(self.state), "which": list(self.which)}


@dataclass(frozen=True)
class _Snapshot:
    """The modules and the process when the evidence was made."""

    tensors: Mapping[str, Mark]
    attributes: Mapping[str, str]
    settings: dict[str, str]


class Evidence:
    """The evidence of one run, with all that is needed to say later whether it holds, and to make it anew.

    Every tensor of both modules is hashed once when this is made (SHA-256, about 1 GB/s), and once for each question.
    Calls of the modules are not slowed down. Contents of buffers that a call writes, and observables, are not looked at.

    Args:
        original: the user's model; kept.
        run: what the pipeline made of it; kept.
    """

    def __init__(self, original: nn.Module, run: Run) -> None:
        self._modules = {"original": original, "folded": run.program.module}
        self._run = run
        self._verification = run.evidence
        self._snapshot = self._take()

    @property
    def fingerprint(self) -> str:
        """Of the original's tensors, as they were verified: SHA-256 in hex."""
        start = "original "
        held = {name.removeprefix(start): mark for name, mark in self._snapshot.tensors.items() if name.startswith(start)}
        return digest_of(held)

    def validity(self) -> Validity:
        """See `Result.validity`."""
        contents, strides = changes(self._snapshot.tensors, self._tensors(), Digests())
        verification = self._verification
        missing = (
            [] if verification.success else [f"evidence: {verification.verdict}, {'; '.join(map(str, verification.because))}"]
        )
        stale = (*missing, *contents, *self._changed_attributes(), *self._disturbances())
        if stale:
            return Validity(State.STALE, stale)
        historical = (*strides, *(f"setting {text}" for text in changed_settings(self._snapshot.settings)))
        return Validity(State.HISTORICAL if historical else State.VERIFIED, historical)

    def revalidate(self, examples: Iterable[Example | tuple[Any, Any]], progress: Progress) -> Verification:
        """See `Result.revalidate`."""
        if found := self._disturbances():
            raise CaptureError(f"nothing can be verified now: {'; '.join(found)}. Call eval() and remove hooks first")
        verification = self._verify(as_examples(examples), progress)
        if verification.success:
            self._verification, self._snapshot = verification, self._take()
        return verification

    def _verify(self, calls: list[Example], progress: Progress) -> Verification:
        run = self._run
        require_calls(run.captured, calls)
        original = observed(self._modules["original"], run.captured.observables)
        limits = run.verification.limits
        probes = run.probes
        verifier = Verifier(original, calls, limits, progress, run.time_budget, probes.examples, probes.fragilities)
        return verifier.verify(run.program, run.rewrites)

    def _take(self) -> _Snapshot:
        marks = marks_of(self._tensors(), Digests(), self._written())
        return _Snapshot(marks, self._attributes(), numerical_settings())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of both modules, and those the trace found outside the model, as in a closure."""
        found = {f"{who} {name}": each for who, module in self._modules.items() for name, each in held_tensors(module).items()}
        found = {name: each for name, each in found.items() if not self._is_observable(name)}
        traced = held_tensors(self._run.captured.module)
        return found | {f"captured {name}": traced[name] for name in sorted(self._run.captured.constants & traced.keys())}

    def _written(self) -> set[str]:
        return {f"{who} {name}" for who in self._modules for name in self._run.captured.effects.mutated_buffers}

    def _attributes(self) -> dict[str, str]:
        found = {
            f"{who} {name}": text for who, module in self._modules.items() for name, text in plain_attributes(module).items()
        }
        return {name: text for name, text in found.items() if not self._is_observable(name)}

    def _is_observable(self, name: str) -> bool:
        """Every call sets observables anew."""
        _, _, place = name.partition(" ")
        return any(place == each or place.startswith(f"{each}[") for each in self._run.captured.observables)

    def _changed_attributes(self) -> list[str]:
        now, before = self._attributes(), self._snapshot.attributes
        changed = [name for name in {**before, **now} if now.get(name) != before.get(name)]
        return [f"{name}: {_briefly(now.get(name, 'gone'), before.get(name, 'absent'))}" for name in changed]

    def _disturbances(self) -> list[str]:
        return [f"{who} {text}" for who, module in self._modules.items() for text in disturbances(module)]


def _briefly(now: str, before: str) -> str:
    return "other code" if "\n" in now + before else f"{now}, was {before}"
