"""Pages that open offline: the report of a run, and a diff alone."""

from .diff_page import render_diff
from .run_page import render

__all__ = ["render", "render_diff"]
