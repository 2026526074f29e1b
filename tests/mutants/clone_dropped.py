"""Returns a tensor itself in place of its copy, which is returned as well."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, answer, returned


class Mutant(Edit):
    check = "shared memory"

    def change(self, program: foldfx.Program) -> None:
        answer(program, "copy", returned(program, "scores"))
