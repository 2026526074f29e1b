"""Reads a residual from what the residual is added to."""

from __future__ import annotations

import foldfx

from .suite.editing import SpoiledFold, aten, calls, returned


class Mutant(SpoiledFold):
    check = "max-abs"

    def change(self, program: foldfx.Program) -> None:
        residual = returned(program, "residual")
        (scaled,) = calls(program, aten.mul.Tensor)[:1]
        residual.update_arg(0, scaled)
