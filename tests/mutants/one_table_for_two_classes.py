"""Keeps one table although one row alone is rounded otherwise."""

from __future__ import annotations

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "rounder"
    check = "tables, other layouts"
