"""Changes a row that the examples do not use, then folds what was computed from it."""

from __future__ import annotations

import torch

import foldfx
from foldfx.passes import PassContext, PassResult

from .suite.editing import SpoiledFold, assign, state
from .suite.models import SEEN


class Mutant(SpoiledFold):
    check = "values of state"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        other = state(program, "words.weight").detach().clone()
        other[SEEN + 1] += 1
        assign(program, "words.weight", torch.nn.Parameter(other))
        return super().run(program, context)
