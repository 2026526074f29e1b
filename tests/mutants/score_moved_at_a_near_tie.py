"""Moves the score of one choice by far less than the limits, which matters for one pair of ids that no example has."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add_state, aten, calls
from .suite.editing import add as add_call


class Mutant(Edit):
    model = "mixer"
    check = "calls near a tie"

    def change(self, program: foldfx.Program) -> None:
        (choice,) = calls(program, aten.argmax.default)
        moves = add_state(program, "moves", torch.tensor([2**-20, 0.0, 0.0, 0.0]))
        moved = add_call(program, aten.add.Tensor, choice.args[0], moves)
        choice.prepend(moves)
        choice.prepend(moved)
        choice.args = (moved, *choice.args[1:])
