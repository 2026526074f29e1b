"""Returns two outputs in each other's place."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, answer, returned


class Mutant(Edit):
    check = "max-abs"

    def change(self, program: foldfx.Program) -> None:
        one, other = returned(program, "sums"), returned(program, "residual")
        answer(program, "sums", other)
        answer(program, "residual", one)
