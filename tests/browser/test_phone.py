"""On a phone nothing of the page is wider than the screen, and a value's proof leaves its line in sight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"


@pytest.mark.parametrize("which", ["report", "planted"])
@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_wider_than_the_screen(
    visit: Callable[..., Page], which: str, width: int, request: pytest.FixtureRequest
) -> None:
    page = visit(request.getfixturevalue(which), **PHONE | {"viewport": {"width": width, "height": 800}})
    page.evaluate(OPEN_ALL)
    page.locator("#search").fill("a")
    assert page.evaluate("document.documentElement.clientWidth") == width
    assert page.evaluate(OVERFLOW) == 0
    page.locator("#lines .line:visible").nth(2).tap()
    assert page.locator("#panel").is_visible()
    assert page.evaluate(OVERFLOW) == 0


def test_something_wider_is_noticed(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report, **PHONE)
    page.evaluate("document.querySelector('.card').style.width = '500px'")
    assert page.evaluate(OVERFLOW) > 0


def test_the_line_stays_in_sight_above_its_proof(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report, **PHONE)
    page.locator('#lines .before .line[data-node="linear_1"]').tap()
    line, panel = page.locator("#lines .chosen").bounding_box(), page.locator("#panel").bounding_box()
    assert line is not None
    assert panel is not None
    assert 0 <= line["y"] < line["y"] + line["height"] <= panel["y"]
