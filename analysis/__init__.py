"""Facts about a program; reads, never changes."""

from .audit import audit
from .capture import capture
from .consumers import Consumers, analyze_consumers
from .dependence import analyze_program
from .example import Example, as_examples
from .facts import Because, Fact, Facts, Source
from .program import Domain, Effects, Program, Specialised
from .storage import Storage, measure
from .tokens import TokenInput

__all__ = [
    "Because",
    "Consumers",
    "Domain",
    "Effects",
    "Example",
    "Fact",
    "Facts",
    "Program",
    "Source",
    "Specialised",
    "Storage",
    "TokenInput",
    "analyze_consumers",
    "analyze_program",
    "as_examples",
    "audit",
    "capture",
    "measure",
]
