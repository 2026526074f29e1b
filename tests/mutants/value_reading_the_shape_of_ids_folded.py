"""Tabulates a value that depends on how many ids there are."""

from __future__ import annotations

import foldfx
from foldfx.runtime import LOOKUP

from .suite.editing import Edit, add, add_state, answer, state
from .suite.models import POSITIONS


class Mutant(Edit):
    check = "sizes 0 and 1"

    def change(self, program: foldfx.Program) -> None:
        _, kinds, _, _ = program.input_nodes()
        table = add_state(program, "long", state(program, "kinds.weight").detach() * POSITIONS)
        answer(program, "long", add(program, LOOKUP, table, kinds, "embedding"))
