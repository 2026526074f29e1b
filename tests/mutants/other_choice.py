"""Returns the smallest element's place for the largest one's."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, aten, returned


class Mutant(Edit):
    check = "discrete values"

    def change(self, program: foldfx.Program) -> None:
        returned(program, "top").target = aten.argmin.default
