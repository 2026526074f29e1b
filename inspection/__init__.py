"""What a reviewer reads."""

from .diff import Diff, diff_graphs
from .diff_markdown import diff_markdown
from .diff_text import diff_text
from .report import SCHEMA_VERSION, Report

__all__ = ["SCHEMA_VERSION", "Diff", "Report", "diff_graphs", "diff_markdown", "diff_text"]
