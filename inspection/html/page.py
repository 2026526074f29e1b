"""The frame of a page: one file, no network, no script but its own."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from .markup import Html, data_script, element

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))


def page(
    heading: str, status: str, contents: Sequence[tuple[str, str]], sections: Sequence[Html], data: Mapping[str, Any], foot: str
) -> str:
    """A page of these sections.

    Args:
        heading: what it is about.
        status: how that ended, for the title of the window.
        contents: identities of the sections, and their names in the navigation.
        sections: one for each of `contents`.
        data: `graph_data`, for the script.
        foot: the last line.

    Returns:
        HTML. The page's policy lets no script but its own run.
    """
    style, script = STYLE.read_text(encoding="utf-8"), SCRIPT.read_text(encoding="utf-8")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{heading}: {status}"),
        element("style", Html(style)),
    )
    links = [element("li", element("a", name, href=f"#{identity}")) for identity, name in contents]
    body = element(
        "body",
        element("a", "Skip to the report", href=f"#{contents[0][0]}", class_="skip"),
        element("header", element("h1", heading), element("nav", element("ul", links), aria_label="Sections")),
        element("main", sections),
        element("footer", element("p", foot, class_="quiet")),
        element("aside", id="panel", tabindex=-1, hidden=True, aria_label="About one value"),
        data_script("graph-data", data),
        element("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
