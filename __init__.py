"""foldfx: proves which values of a traced model depend on one token id alone, and folds them into lookup tables."""

from .analysis import Example, Facts, Program, TokenInput, capture
from .api import Result, analyze, compile
from .passes import FoldTokens, Limits, Pipeline

__all__ = [
    "Example",
    "Facts",
    "FoldTokens",
    "Limits",
    "Pipeline",
    "Program",
    "Result",
    "TokenInput",
    "analyze",
    "capture",
    "compile",
]
