"""Puts the number of positions that the examples have in place of the one read from the ids."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, returned
from .suite.models import POSITIONS


class Mutant(Edit):
    check = "sizes 0 and 1"

    def change(self, program: foldfx.Program) -> None:
        returned(program, "mean").update_arg(1, POSITIONS)
