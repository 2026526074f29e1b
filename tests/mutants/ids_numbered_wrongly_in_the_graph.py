"""Sends an id that the examples do not use to another id's row, behind the back of the tables."""

from __future__ import annotations

import torch

import foldfx
from foldfx.runtime import LOOKUP

from .suite.editing import SpoiledFold, add, add_state, aten, calls
from .suite.models import SEEN, VOCABULARY


class Mutant(SpoiledFold):
    check = "tables, in the graph"

    def change(self, program: foldfx.Program) -> None:
        ids = program.input_nodes()[0]
        numbers = torch.arange(VOCABULARY)
        numbers[SEEN] = SEEN + 1
        rows = add_state(program, "numbers", numbers[:, None])
        number = add(program, LOOKUP, rows, ids, "embedding")
        flat = add(program, aten.squeeze.dim, number, -1)
        lookup = next(call for call in calls(program, LOOKUP) if call.args[1] is ids)
        for node in (rows, number, flat):
            lookup.prepend(node)
        lookup.update_arg(1, flat)
