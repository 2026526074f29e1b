"""Margins of token-only decisions, row by row of their domain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ...analysis.decisions import Decision
from ..tables.region import Region
from ..tables.runner import RegionRunner
from ..tables.tabulate import Call


@dataclass(frozen=True)
class FoundMargins:
    """Of one decision in one call, all float64.

    Attributes:
        margin: the least one of each row, [rows].
        rank_margin: the same, from another order too.
        deviating: what may deviate by rounding, [rows, width]: the scores, and half of each margin, since two values may
            deviate there.
    """

    margin: torch.Tensor
    rank_margin: torch.Tensor
    deviating: torch.Tensor


class RowMargins:
    """Evaluates the margins of decisions over one region, however their values are laid out.

    Args:
        region: the region.
        decisions: with margins, over the region's inputs.

    Raises:
        RegionError: they read another input.
    """

    def __init__(self, region: Region, decisions: Iterable[Decision]) -> None:
        self._decisions = list(decisions)
        self._run = RegionRunner(region, list(dict.fromkeys(node for each in self._decisions for node in each.operands)))

    def __call__(self, call: Call) -> dict[Decision, FoundMargins]:
        """Of every decision, for the rows that the call answers."""
        values = dict(zip(self._run.wanted, self._run(call.ids), strict=True))

        def rows(decision: Decision, spread: torch.Tensor) -> torch.Tensor:
            return call.answers(self._run.as_rows(decision.laid_out_like, spread, call.ids))

        found = {}
        for each in self._decisions:
            margin = each.spread(each.margin(values), values)
            near = each.spread(each.rank_margin(values), values)
            score = rows(each, values[each.score].double().broadcast_to(margin.shape))
            margins = rows(each, margin)
            found[each] = FoundMargins(margins.amin(1), rows(each, near).amin(1), torch.cat([score, margins / 2], 1))
        return found
