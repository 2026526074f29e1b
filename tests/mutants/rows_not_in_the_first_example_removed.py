"""Cuts an embedding down to the ids that the first example uses."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add_state, aten, calls, state


class Mutant(Edit):
    check = "exceptions"

    def change(self, program: foldfx.Program) -> None:
        read = next(call for call in calls(program, aten.embedding.default) if call.args[0].target == "words.weight")
        shorter = add_state(program, "fewer", state(program, "words.weight").detach()[:4].clone())
        read.prepend(shorter)
        read.update_arg(0, shorter)
