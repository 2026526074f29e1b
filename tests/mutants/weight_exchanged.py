"""Puts other values behind the name of a weight, in a row the examples do not use."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, assign, clone, state
from .suite.models import SEEN


class Mutant(Edit):
    check = "values of state"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "gate")
        other = state(program, "words.weight").detach().clone()
        other[SEEN + 1] += 1
        assign(program, "words.weight", torch.nn.Parameter(other))
