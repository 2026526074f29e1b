"""What a reviewer reads."""

from .report import SCHEMA_VERSION, Report

__all__ = ["SCHEMA_VERSION", "Report"]
