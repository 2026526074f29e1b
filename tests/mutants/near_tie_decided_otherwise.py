"""Keeps one table, within the limits of one row alone, although a score then falls on the other side of a threshold."""

from __future__ import annotations

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "chooser"
    check = "decisions behind tables"
