"""Facts about a program; reads, never changes."""

from .audit import audit
from .capture import capture
from .consumers import Consumers, analyze_consumers
from .decisions import Decision, find_decisions
from .dependence import analyze_program
from .example import Example, as_examples
from .facts import Because, Fact, Facts, Source
from .hashed import HashedChoice, find_hashed
from .program import Domain, Effects, Program, Specialised
from .storage import Storage, measure
from .tokens import TokenInput

__all__ = [
    "Because",
    "Consumers",
    "Decision",
    "Domain",
    "Effects",
    "Example",
    "Fact",
    "Facts",
    "HashedChoice",
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
    "find_decisions",
    "find_hashed",
    "measure",
]
