"""Turns a parameter into a buffer."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, clone, state


class Mutant(Edit):
    check = "kinds of state"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "state")
        scale = state(program, "scale").detach()
        del program.module.scale
        program.module.register_buffer("scale", scale)
