"""What an applied rewrite leaves for verification and the report: which value became which table."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from .region import Region


@dataclass(frozen=True)
class Table:
    """One tabulated value.

    Attributes:
        value: the node it stands for, in the program before the rewrite.
        state: the name of the table in the rewritten module's state, [V, width].
        bounds: what ids outside the domain do, see `runtime.BOUNDS`.
    """

    value: Node
    state: str
    bounds: str


@dataclass(frozen=True)
class Rewrite:
    """One applied rewrite.

    Attributes:
        pass_name: the pass that made it.
        region: the token-only region of the program before.
        tables: what was tabulated.
        removed: names of the state that left the program.
        bytes_before: bytes of the state that left.
        bytes_after: bytes of the tables that came.
    """

    pass_name: str
    region: Region
    tables: tuple[Table, ...]
    removed: tuple[str, ...]
    bytes_before: int
    bytes_after: int

    @property
    def subject(self) -> str:
        return f"{self.region.ids.name} → {', '.join(table.value.name for table in self.tables)}"
