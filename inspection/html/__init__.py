"""The report of a run as one page that opens offline."""

from .page import render

__all__ = ["render"]
