"""Draws a random number that nobody reads."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, aten


class Mutant(Edit):
    model = "sampler"
    check = "random state"

    def change(self, program: foldfx.Program) -> None:
        add(program, aten.rand.default, [1], dtype=torch.float32, device=torch.device("cpu"))
