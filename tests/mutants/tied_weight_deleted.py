"""Deletes the weight of a tied head, which the embedding still reads."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit


class Mutant(Edit):
    model = "sampler"
    check = "lint"

    def change(self, program: foldfx.Program) -> None:
        del program.module.get_submodule("head").weight
