"""Eliminates dead code, and takes every call without a reader for dead."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit


class Mutant(Edit):
    check = "buffers"

    def change(self, program: foldfx.Program) -> None:
        kept = ("placeholder", "output", "call_module")
        program.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in kept)
