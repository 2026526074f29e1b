"""What an applied rewrite leaves for verification and the report: which value became which table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.fx import Node

from ..analysis.break_even import BreakEven
from .tables.encode import Pack
from .tables.region import Region
from .tables.row_classes import RowClasses, class_layout, end_layout
from .tables.tabulate import Call
from .verification.layout import Layout
from .verification.layouts import FULL


@dataclass(frozen=True)
class Tables:
    """The tables over one index.

    Attributes:
        region: the region they are values of, in the program before the rewrite.
        packs: how they are stored.
        bounds: what ids outside the domain do, see `runtime.BOUNDS`.
        classes: which table answers for which row, where there is one for each execution class.
    """

    region: Region
    packs: tuple[Pack, ...]
    bounds: str
    classes: RowClasses | None = None

    @property
    def values(self) -> list[Node]:
        """The values tabulated."""
        return [part.value for pack in self.packs for part in pack.parts]

    def decode(self, module: nn.Module, calls: Sequence[Call], built: int | None = None) -> dict[Node, torch.Tensor]:
        """What the program looks up for the rows of `calls`, [rows, width] for each value.

        Args:
            module: the program's.
            calls: calls of the region.
            built: the class whose tables such calls built: where the user states which calls use it, it is asked itself.
        """
        rows = torch.cat([call.rows for call in calls])
        classes = None
        if self.classes is not None and self.classes.stated and built is not None:
            classes = torch.full_like(rows, built)
        elif self.classes is not None:
            of = {count: self.classes.of(count) for count in {call.count for call in calls}}
            classes = torch.cat([call.answers(of[call.count]) for call in calls])
        return {node: found for pack in self.packs for node, found in pack.decode(module, rows, classes).items()}

    def class_layouts(self) -> list[Layout]:
        """The calls that built the tables of classes other than bulk, and calls at the ends of the rule's intervals."""
        if self.classes is None:
            return []
        built = [class_layout(self.region, number, built) for number, built in enumerate(self.classes.built) if built.count]
        return built + self.end_layouts()

    def spared(self, layout: Layout) -> Layout:
        """`layout` on a slice of the rows, if it calls them one by one and so does the layout of a class."""
        if not layout.single or layout.number or self.classes is None or self.classes.stated:
            return layout
        if layout.rows.numel() <= FULL or all(built.count != 1 for built in self.classes.built):
            return layout
        return replace(layout, rows=layout.rows[:FULL], note="every row is called alone for its class")

    def end_layouts(self) -> list[Layout]:
        """Calls of as many rows as where an interval of the rule ends, and of one more."""
        if self.classes is None:
            return []
        counts = sorted({count for bound in self.classes.bounds for count in (bound, bound + 1) if count <= FULL})
        return [end_layout(self.region, count, not self.classes.stated) for count in counts]


@dataclass(frozen=True)
class Rewrite:
    """One applied rewrite.

    Attributes:
        name: the pass that made it and the values it replaced; tells rewrites of one program apart.
        tables: what was tabulated, by index.
        removed: names of the state that left the program.
        bytes_before: bytes of the state that left.
        bytes_after: bytes of the tables that came.
        balance: the same in symbols.
    """

    name: str
    tables: tuple[Tables, ...]
    removed: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    balance: BreakEven
