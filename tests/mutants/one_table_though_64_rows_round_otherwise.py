"""Keeps one table although 64 rows together are rounded otherwise."""

from __future__ import annotations

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "rounder of 64"
    check = "other row counts"
