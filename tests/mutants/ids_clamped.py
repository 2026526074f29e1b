"""Clamps ids into the domain, where the model raises."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, aten, calls
from .suite.models import VOCABULARY


class Mutant(Edit):
    check = "ids outside the domain"

    def change(self, program: foldfx.Program) -> None:
        ids = program.input_nodes()[0]
        for read in [call for call in calls(program, aten.embedding.default) if call.args[1] is ids]:
            inside = add(program, aten.clamp.default, ids, 0, VOCABULARY - 1)
            read.prepend(inside)
            read.update_arg(1, inside)
