"""Adds 2e-5 to one column of an output."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, add_state, answer, aten, returned
from .suite.models import OUT


class Mutant(Edit):
    check = "max-abs"

    def change(self, program: foldfx.Program) -> None:
        much = torch.zeros(OUT)
        much[3] = 2e-5
        large = add(program, aten.add.Tensor, returned(program, "twice"), add_state(program, "much", much))
        answer(program, "twice", large)
