"""Does not write a buffer back any more."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, aten, calls


class Mutant(Edit):
    check = "buffers"

    def change(self, program: foldfx.Program) -> None:
        (write,) = calls(program, aten.copy_.default)
        program.graph.erase_node(write)
