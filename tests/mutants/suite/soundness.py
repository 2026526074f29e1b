"""Writes docs/soundness.md: `python -m tests.mutants.suite.soundness` in the repository's root, or `make soundness`."""

from __future__ import annotations

from pathlib import Path

import torch

from .checks import CHECKS
from .models import MODELS
from .running import NAMES, mutant, seen

FILE = Path(__file__).parents[3] / "docs" / "soundness.md"

_HEAD = """# Which check rejects which mutant

`tests/mutants/` holds {mutants} passes that are wrong on purpose, one file each. Each runs through the real pipeline on one
of {models} small models and must be rejected by the check named here; then the printed graph and every bit of the state,
the model's and the program's, are what they were before (but for the one mutant that writes through numpy, which is
named, not undone). Each of the {checks} checks proves its worth: with it taken out, the mutant named beside it survives.

This file is written by the suite, with `make soundness`; a test fails where it is not what the suite writes. What the
checks compare in detail stands in [verification.md](verification.md).

## Checks

| | check | what it compares | taken out, this survives |
|---|---|---|---|
"""

_MIDDLE = """
Checks 1–{structural} look at what one pass did and end the run at the first report, so that no other check is asked.

## Mutants

**●** the check that must reject it, ○ others that report it as well; numbers are those above.

"""


def table() -> str:
    """The document, after running every mutant."""
    numbers = {check.name: number for number, check in enumerate(CHECKS, 1)}
    text = _HEAD.format(mutants=len(NAMES), models=len(MODELS), checks=len(CHECKS))
    text += "".join(f"| {numbers[each.name]} | {each.name} | {each.what} | {_said(each.only)} |\n" for each in CHECKS)
    text += _MIDDLE.format(structural=numbers["exceptions"] - 1)
    text += f"| mutant | model | {' | '.join(str(number) for number in numbers.values())} |\n"
    text += f"|---|---|{'---|' * len(CHECKS)}\n"
    for name in NAMES:
        marks = ["**●**" if each.name == mutant(name).check else "○" if each.name in seen(name) else "" for each in CHECKS]
        text += f"| {_said(name)} | {mutant(name).model} | {' | '.join(marks)} |\n"
    text += "\n## What they do\n\n"
    return text + "".join(f"- **{_said(name)}**: {mutant(name).__doc__}\n" for name in NAMES)


def _said(name: str) -> str:
    return name.replace("_", " ")


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(table())
