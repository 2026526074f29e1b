"""HTML by construction: text is escaped unless it was made here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

VOID = frozenset({"meta", "br", "input", "rect", "line", "path"})
"""Elements without content; those of SVG are closed by the parser of HTML as well."""


class Html(str):
    """Markup; every other string is text."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        tag: its name.
        children: `Html` as it is, other objects as escaped text, iterables one by one, None not at all.
        attributes: values are escaped; a trailing _ of a name is dropped, others become -. None and False leave one out.
    """
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{tag}{given}/>")
    return Html(f"<{tag}{given}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Html:
    """Several children without an element around them."""
    return Html("".join(_child(child) for child in children))


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, Iterable) and not isinstance(child, str):
        return joined(*child)
    return escape(str(child), quote=False)


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-") if name != "viewBox" else name
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def table(heads: Iterable[object], rows: Iterable[Iterable[object]], **attributes: object) -> Html:
    """A table with a head; cells that are numbers or end in B or % stand at the right. It scrolls in its own frame."""
    head = element("tr", (element("th", each, scope="col") for each in heads))
    body = (element("tr", (element("td", cell, class_=_alignment(cell)) for cell in row)) for row in rows)
    return element(
        "div", element("table", element("thead", head), element("tbody", body), **attributes), class_="wide", tabindex=0
    )


def _alignment(cell: object) -> str | None:
    text = str(cell)
    numeric = not isinstance(cell, Html) and text[:1] in "-+−0123456789" and text.rstrip(" B%×")[-1:].isdigit()
    return "number" if numeric else None


def data_script(identity: str, data: Any) -> Html:
    """Data for the page's script, in a block that a browser does not run; no text in it can end the block."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{escape(identity)}">{text}</script>')
