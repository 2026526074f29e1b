"""What a folded model needs at run time: custom operations, input guards, observables. Imports without tracing anything."""

from .guards import InputGuards
from .lookup import BOUNDS, LOOKUP, lookup
from .observed import ObservedProgram

__all__ = ["BOUNDS", "LOOKUP", "InputGuards", "ObservedProgram", "lookup"]
