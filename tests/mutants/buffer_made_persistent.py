"""Registers a non-persistent buffer anew, so that it is saved from now on."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, clone, state


class Mutant(Edit):
    check = "kinds of state"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "shifted")
        program.module.register_buffer("shift", state(program, "shift"))
