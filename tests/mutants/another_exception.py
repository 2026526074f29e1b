"""Raises another exception for ids outside the domain."""

from __future__ import annotations

import foldfx
from foldfx.runtime import LOOKUP

from .suite.editing import SpoiledFold, calls


class Mutant(SpoiledFold):
    check = "ids outside the domain"

    def change(self, program: foldfx.Program) -> None:
        for lookup in calls(program, LOOKUP):
            lookup.update_arg(2, "gather")
