"""Tabulates with a weight as it was before it was changed."""

from __future__ import annotations

import torch

import foldfx
from foldfx.passes import PassContext, PassResult

from .suite.editing import SpoiledFold, assign, state


class Mutant(SpoiledFold):
    check = "values of state"

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        assign(program, "up.weight", torch.nn.Parameter(state(program, "up.weight").detach() * 0.9))
        return super().run(program, context)
