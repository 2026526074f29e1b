"""Outcomes are data: what a pass applied, did not find, refused, or lost to verification, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How one rule application ended."""

    APPLIED = "applied"
    NO_MATCH = "no_match"
    REFUSED = "refused"
    REJECTED = "rejected"
    DISABLED = "disabled"


@dataclass(frozen=True)
class Outcome:
    """One rule application.

    Attributes:
        pass_name: the pass that tried.
        status: how it ended.
        subject: what it was tried on, e.g. a token input and the values of its frontier.
        reason: one sentence; for a refusal, with the arithmetic or the rule.
        nodes: the graph nodes concerned, by name.
        figures: numbers behind the sentence, for machines.
    """

    pass_name: str
    status: Status
    subject: str
    reason: str
    nodes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pass": self.pass_name,
            "status": str(self.status),
            "subject": self.subject,
            "reason": self.reason,
            "nodes": list(self.nodes),
            "figures": dict(self.figures),
        }

    def __str__(self) -> str:
        return f"{self.pass_name} {self.status}: {self.subject}: {self.reason}"
