"""Returns one value less."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit


class Mutant(Edit):
    check = "exceptions"

    def change(self, program: foldfx.Program) -> None:
        output = program.graph.output_node()
        output.args = (output.args[0][:-1],)
