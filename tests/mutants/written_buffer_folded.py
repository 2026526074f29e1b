"""Takes the value of a buffer at the time of the fold for a constant, though every call writes it."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add_state, aten, calls, state


class Mutant(Edit):
    check = "second call"

    def change(self, program: foldfx.Program) -> None:
        count = next(call for call in calls(program, aten.add.Tensor) if call.args[0].target == "calls")
        constant = add_state(program, "count_folded", state(program, "calls").clone())
        count.prepend(constant)
        count.update_arg(0, constant)
