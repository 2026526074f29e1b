"""A layout cut down to what a time budget allows."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice

import torch

from ..tables.runner import RegionRunner
from .layout import Layout

TRIALS = 32
"""Calls that are timed to tell how many fit."""

FRAGILE = 256
"""Rows that are always called, those that deviated most."""


def sampled(layout: Layout, run: RegionRunner, seconds: float, deviation: torch.Tensor) -> Layout:
    """As many rows of `layout` as can be called in `seconds`: the fragile ones, and one at random of each stratum.

    Args:
        layout: calls of few rows.
        run: evaluates the region.
        seconds: the budget.
        deviation: how far each row's table was from the region so far, [domain]; the largest are the fragile ones.
    """
    trials = list(islice(layout.calls(), TRIALS))
    began = time.perf_counter()
    for call in trials:
        run(call.ids)
    spent = time.perf_counter() - began
    rows = layout.rows.numel()
    allowed = max(int(seconds / spent * sum(call.rows.numel() for call in trials)), 1) if spent else rows
    if allowed >= rows:
        return layout
    fragile = deviation.topk(min(FRAGILE, rows)).indices
    fragile = fragile[deviation[fragile] > 0]
    strata = torch.rand(allowed, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + torch.arange(allowed)
    chosen = torch.unique(torch.cat([fragile, layout.rows[(strata * rows / allowed).long().clamp_max(rows - 1)]]))
    note = f"a stratified sample and the {fragile.numel()} rows that deviated most, in {seconds:g} s"
    return replace(layout, rows=chosen, note="; ".join(filter(None, (layout.note, note))))
