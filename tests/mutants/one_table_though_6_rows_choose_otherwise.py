"""Keeps one table, within the limits of every call, although in calls of six rows a score is over a threshold."""

from __future__ import annotations

from .suite.editing import SpoiledFold


class Mutant(SpoiledFold):
    model = "chooser of six"
    check = "fragile tokens"
