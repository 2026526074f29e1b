"""Passes, the pass manager, and verification. One pass a file."""

from .context import Fuel, Pass, PassContext, PassResult
from .evidence import LayoutEvidence, Verdict, Verification
from .figures import Figures, Limits
from .fold_tokens import FoldTokens
from .outcome import Outcome, Status
from .pipeline import Pipeline, Run
from .rewrite import Rewrite, Tables

__all__ = [
    "Figures",
    "FoldTokens",
    "Fuel",
    "LayoutEvidence",
    "Limits",
    "Outcome",
    "Pass",
    "PassContext",
    "PassResult",
    "Pipeline",
    "Rewrite",
    "Run",
    "Status",
    "Tables",
    "Verdict",
    "Verification",
]
