"""Returns a parameter in place of its copy."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, answer, returned


class Mutant(Edit):
    check = "shared memory"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "state", returned(program, "state").all_input_nodes[0])
