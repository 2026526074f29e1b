"""Stores new state with a dimension more than recorded, which broadcasts to the same values."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, add_state, answer, assign, aten, returned
from .suite.models import OUT


class Mutant(Edit):
    check = "state"

    def change(self, program: foldfx.Program) -> None:
        ones = add_state(program, "ones", torch.ones(OUT))
        answer(program, "twice", add(program, aten.mul.Tensor, returned(program, "twice"), ones))
        assign(program, "ones", torch.ones(1, OUT))
