"""Writes into an argument that the model leaves alone."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, aten, returned


class Mutant(Edit):
    check = "inputs after the call"

    def change(self, program: foldfx.Program) -> None:
        _, _, hidden, _ = program.input_nodes()
        add(program, aten.copy_.default, hidden, returned(program, "twice"))
