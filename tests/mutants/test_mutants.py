"""Deliberately wrong passes, one file each beside this one: every one is rejected by the right check and does no harm.

The checks prove their worth in turn: with any one of them taken out, a mutant survives.
"""

from __future__ import annotations

import pytest
import torch

import foldfx
from foldfx.passes import FoldRoutes, FoldTokens, Pipeline, Verdict

from .suite.checks import CHECKS, Check
from .suite.editing import Edit, clone
from .suite.models import MODELS, subject
from .suite.running import NAMES, attempt, ending, mutant, seen
from .suite.soundness import FILE, table


@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_is_rejected_by_the_right_check_and_does_no_harm(name: str) -> None:
    wrong, end = mutant(name), ending(name)
    assert end.status in ("raised", "rolled_back")
    assert wrong.check in seen(name)
    assert end.run is None or end.run.verification.verdict is Verdict.DIFFERENT
    assert (list(end.left) == []) is wrong.harmless


def test_there_are_enough_of_them_each_with_a_line_of_its_own() -> None:
    assert len(NAMES) >= 40
    lines = [str(mutant(name).__doc__) for name in NAMES]
    assert len(set(lines)) == len(lines)
    assert all(line.endswith(".") and "\n" not in line for line in lines)
    assert {mutant(name).model for name in NAMES} == set(MODELS)
    assert {mutant(name).check for name in NAMES} == {check.name for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_without_a_check_a_mutant_survives(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is accepted, or else, where writes are no longer refused, it has done its harm."""
    assert mutant(check.only).check == check.name
    assert not (ending(check.only).run and ending(check.only).run.accepted)
    check.remove(monkeypatch)
    end = attempt(check.only)
    assert end.status == "accepted", end.said


class _Copies(Edit):
    """The twin of the mutants: a pass made as they are that changes the graph and does no harm."""

    def __init__(self, leaf: str | int) -> None:
        self.leaf = leaf

    def change(self, program: foldfx.Program) -> None:
        clone(program, self.leaf)


@pytest.mark.parametrize(("name", "leaf"), [("reader", "gate"), ("sampler", 0)])
def test_a_change_without_a_fault_is_accepted(name: str, leaf: str | int) -> None:
    given = subject(name)
    run = Pipeline([_Copies(leaf)]).run(given.program, given.examples, original=given.model)
    assert (run.status, run.verification.because) == ("accepted", ())


@pytest.mark.parametrize(
    ("name", "status"), [("reader", "accepted"), ("sampler", "unchanged"), ("rounder", "accepted"), ("chooser", "accepted")]
)
def test_a_fold_without_a_fault_is_accepted(name: str, status: str) -> None:
    """The rounder's and the chooser's are tabulated by execution class, once the first rung has been found wrong."""
    given = subject(name)
    run = Pipeline([FoldTokens()]).run(given.program, given.examples, original=given.model)
    assert (run.status, len(run.rewrites)) == (status, {"reader": 3, "sampler": 0, "rounder": 1, "chooser": 1}[name])


def test_routes_without_a_fault_are_accepted() -> None:
    given = subject("router")
    run = Pipeline([FoldRoutes()]).run(given.program, given.examples, original=given.model)
    assert (run.status, len(run.rewrites)) == ("accepted", 1)


def test_the_documentation_is_what_the_suite_writes() -> None:
    torch.set_num_threads(1)
    assert FILE.read_text() == table(), "run `make soundness`"
