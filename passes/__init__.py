"""Passes, the pass manager, and verification. One pass a file."""

from .context import Fuel, Pass, PassContext, PassResult
from .fold_routes import FoldRoutes
from .fold_tokens import FoldTokens
from .outcome import Outcome, Status
from .pipeline import Pipeline, Run
from .rewrite import Rewrite, Tables
from .verification.evidence import LayoutEvidence, Verdict, Verification
from .verification.figures import Figures, Limits

__all__ = [
    "Figures",
    "FoldRoutes",
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
