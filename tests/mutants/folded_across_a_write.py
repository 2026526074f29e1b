"""Returns a count as it was before the call counted itself."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, calls, read


class Mutant(Edit):
    check = "discrete values"

    def change(self, program: foldfx.Program) -> None:
        before = add(program, aten.clone.default, read(program, "calls"))
        calls(program, aten.copy_.default)[0].prepend(before)
        answer(program, "count", before)
