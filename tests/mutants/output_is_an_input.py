"""Returns an argument in place of its copy."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, answer, returned


class Mutant(Edit):
    check = "shared memory"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "given", returned(program, "given").all_input_nodes[0])
