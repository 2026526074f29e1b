"""Finds the mutants, runs them through the real pipeline, and says which checks reject them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import foldfx
from foldfx.errors import FoldfxError
from foldfx.passes import Pipeline, Run
from foldfx.passes.verification.bits import same_bits

from .checks import BY_NAME, CHECKS
from .editing import Edit
from .models import Subject, subject

FOLDER = Path(__file__).parents[1]
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("test_"))


@cache
def mutant(name: str) -> Edit:
    """The pass of the file of that name."""
    module = importlib.import_module(f"{__package__.rpartition('.')[0]}.{name}")
    found: Edit = module.Mutant()
    found.__doc__ = module.__doc__
    return found


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        run: None where an error was raised.
        said: every report.
        left: what the run left otherwise than it was.
    """

    run: Run | None
    said: Sequence[str]
    left: Sequence[str]

    @property
    def status(self) -> str:
        return "raised" if self.run is None else self.run.status

    @property
    def seen(self) -> list[str]:
        """The checks that reported."""
        return [check.name for check in CHECKS if any(_reports(check.report, said) for said in self.said)]


def _reports(pattern: str, said: str) -> bool:
    return re.search(pattern, said) is not None


class _Before:
    """What a run must leave alone; `put_back` undoes the harm."""

    def __init__(self, given: Subject) -> None:
        self._given = given
        self._text = given.program.text()
        self._tensors = self._named()
        self._values = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    def _named(self) -> dict[str, Tensor]:
        sides = (("model", self._given.model), ("program", self._given.program.module))
        return {
            f"{side} {name}": tensor
            for side, module in sides
            for name, tensor in (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
                *module.state_dict(keep_vars=True).items(),
            )
        }

    def changed(self) -> list[str]:
        now = self._named()
        found = [] if self._given.program.text() == self._text else ["the printed graph"]
        found += [] if list(now) == list(self._tensors) else ["names of the state"]
        return found + [name for name, tensor in self._tensors.items() if not same_bits(tensor, self._values[name])]

    def put_back(self) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(self._values[name])

    def is_handed_back(self, program: foldfx.Program) -> bool:
        """Whether a program prints like the captured one and holds the same values."""
        held = program.module.state_dict()
        mine = {name: self._values[f"program {name}"] for name in self._given.program.module.state_dict()}
        same = held.keys() == mine.keys() and all(same_bits(held[name], mine[name]) for name in mine)
        return same and program.text() == self._text


def attempt(name: str) -> Ending:
    """Run a mutant; nothing it does lasts."""
    wrong = mutant(name)
    given = subject(wrong.model)
    before = _Before(given)
    try:
        run = Pipeline([wrong]).run(given.program, given.examples, original=given.model)
    except FoldfxError as error:
        ending = Ending(None, (str(error),), before.changed())
    else:
        left = before.changed()
        if not run.accepted and not before.is_handed_back(run.program):
            left.append("the program handed back")
        ending = Ending(run, run.verification.because, left)
    finally:
        before.put_back()
    return ending


@cache
def ending(name: str) -> Ending:
    """`attempt`, once for each mutant."""
    return attempt(name)


@cache
def seen(name: str) -> tuple[str, ...]:
    """The checks that see a mutant; the second seed does where it has something to add."""
    found = list(ending(name).seen)
    if mutant(name).model == "sampler" and ending(name).run is not None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            BY_NAME["second seed"].remove(monkeypatch)
            if len(attempt(name).said) < len(ending(name).said):
                found.append("second seed")
    return tuple(check.name for check in CHECKS if check.name in found)
