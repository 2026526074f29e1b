"""Gives a new value the name of an older one that is no longer needed."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "lint"

    def change(self, program: foldfx.Program) -> None:
        new = add(program, aten.relu.default, returned(program, "gate"))
        answer(program, "gate", new)
        new.name = next(node.name for node in program.graph.nodes if node.target is aten.linear.default)
