"""Draws as many random numbers as the model, and computes with those of seed 0."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add_state, aten, calls
from .suite.models import WIDTH


class Mutant(Edit):
    model = "sampler"
    check = "second seed"

    def change(self, program: foldfx.Program) -> None:
        (draw,) = calls(program, aten.rand.default)
        constant = add_state(program, "drawn", torch.rand(WIDTH, generator=torch.Generator().manual_seed(0)))
        draw.prepend(constant)
        draw.replace_all_uses_with(constant)
