"""Scales a weight through numpy, which no operation of torch sees."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, clone, state


class Mutant(Edit):
    check = "writes seen afterwards"
    harmless = False

    def change(self, program: foldfx.Program) -> None:
        clone(program, "gate")
        weight = state(program, "scale").detach().numpy()
        weight *= 2
