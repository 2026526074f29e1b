"""What a folded model needs at run time: custom operations and input guards. Imports without tracing anything."""

from .guards import InputGuards
from .lookup import BOUNDS, LOOKUP, lookup

__all__ = ["BOUNDS", "LOOKUP", "InputGuards", "lookup"]
