"""Scales a weight in place."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, clone, state


class Mutant(Edit):
    check = "writes in place"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "gate")
        with torch.no_grad():
            state(program, "scale").mul_(2)
