"""A way of calling a region for rows of its domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ..tables.tabulate import Call


@dataclass(frozen=True)
class Layout:
    """One way of calling a region for the rows of its domain.

    Attributes:
        name: e.g. "scalar".
        shape: of the ids, e.g. "[257]".
        rows: the rows asked for, 1-D numbers.
        make: the calls that ask for them.
        note: why the layout's own shape is not possible, or what is particular about it.
        as_built: the calls tables are built with, or measured to be equal to, so that table and region must be equal.
        number: the execution class of the tables built so; 0 for the bulk ones.
        single: each call is of one row.
    """

    name: str
    shape: str
    rows: torch.Tensor
    make: Callable[[torch.Tensor], Iterator[Call]]
    note: str = ""
    as_built: bool = False
    number: int = 0
    single: bool = False

    def covered(self, seen: int, domain: int) -> int:
        """How many rows of the domain `seen` answers are for; the same may have been asked for more than once."""
        return min(seen, self.rows.numel(), domain)

    def calls(self) -> Iterator[Call]:
        """One call after the other."""
        return self.make(self.rows)
