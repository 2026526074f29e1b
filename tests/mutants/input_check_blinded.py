"""Hands the check of the inputs one of them for all."""

from __future__ import annotations

import foldfx
from foldfx.analysis.program import GUARDS

from .suite.editing import Edit


class Mutant(Edit):
    check = "input check"

    def change(self, program: foldfx.Program) -> None:
        (check,) = program.graph.find_nodes(op="call_module", target=GUARDS)
        check.args = check.args[:1] + check.args[:1] + check.args[2:]
