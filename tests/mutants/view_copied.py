"""Returns a copy where the model returns a view of another output."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, clone


class Mutant(Edit):
    check = "shared memory"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "flat")
