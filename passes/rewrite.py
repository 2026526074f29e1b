"""What an applied rewrite leaves for verification and the report: which value became which table."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from ..analysis.break_even import BreakEven
from .encode import Pack
from .region import Region


@dataclass(frozen=True)
class Tables:
    """The tables over one index.

    Attributes:
        region: the region they are values of, in the program before the rewrite.
        packs: how they are stored.
        bounds: what ids outside the domain do, see `runtime.BOUNDS`.
    """

    region: Region
    packs: tuple[Pack, ...]
    bounds: str

    @property
    def values(self) -> list[Node]:
        """The values tabulated."""
        return [part.value for pack in self.packs for part in pack.parts]


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
