"""Takes add(x, 1.0) for add(x, 1), which is computed already."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "properties"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "next_float", add(program, aten.clone.default, returned(program, "next")))
