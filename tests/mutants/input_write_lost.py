"""Does not write into an argument any more."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, aten, calls


class Mutant(Edit):
    model = "sampler"
    check = "inputs after the call"

    def change(self, program: foldfx.Program) -> None:
        (write,) = calls(program, aten.copy_.default)
        program.graph.erase_node(write)
