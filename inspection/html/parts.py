"""Pieces that several sections of the page are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markup import Html, element, joined

Report = Mapping[str, Any]
"""`Report.to_dict()`."""

MOST_LISTED = 200
"""Entries of one list, at most; all are in report.json."""

_KINDS = {"applied": "good", "equivalent_on": "good", "rejected": "bad", "different": "bad", "freed": "good", "added": "new"}


def section(identity: str, title: str, *children: object) -> Html:
    head = element("h2", title, id=f"{identity}-title")
    return element("section", head, *children, id=identity, aria_labelledby=f"{identity}-title")


def foldable(title: object, *children: object, opened: bool) -> Html:
    return element("details", element("summary", title), *children, open=opened)


def badge(what: str, kind: str = "") -> Html:
    """A status; its colour is that of `kind`, or the usual one."""
    return element("span", what.replace("_", " "), class_=f"badge {kind or _KINDS.get(what, 'quiet')}")


def node_button(name: str) -> Html:
    """A value's name that opens what is known about it."""
    return element("button", name, type="button", class_="node", data_node=name)


def node_buttons(names: Sequence[str]) -> Html:
    return joined(joined(node_button(name), " ") for name in names[:MOST_LISTED])


def shortened(what: str, count: int) -> str:
    return f"{count:,} {what}" + (f", the first {MOST_LISTED}" if count > MOST_LISTED else "")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.2e}" if value else "0"
