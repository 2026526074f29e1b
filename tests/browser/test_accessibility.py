"""axe-core finds nothing serious, in light and in dark, with a value open and with everything unfolded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"

PLANTED = {
    "button-name": "document.querySelector('#step-on').textContent = ''",
    "color-contrast": "document.querySelector('.card p').style.color = 'rgb(128, 128, 128)'",
    "html-has-lang": "document.documentElement.lang = ''",
    "image-alt": "document.body.append(document.createElement('img'))",
    "label": "document.querySelector('#search').closest('label').replaceWith(document.querySelector('#search'))",
}
"""By rule of axe, what violates it."""


def violations(page: Page) -> dict[str, list[Any]]:
    """Serious and critical ones by rule, with the elements."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return {each["id"]: [node["target"] for node in each["nodes"]] for each in serious}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_violated(visit: Callable[..., Page], report: Path, scheme: str) -> None:
    """The policy is off, as it would stop axe like any other script."""
    page = visit(report, color_scheme=scheme, bypass_csp=True)
    page.evaluate(OPEN_ALL)
    page.locator("#search").fill("sin")
    page.locator("#lines .fold button").click()
    assert violations(page) == {}
    page.locator('#lines .before .line[data-node="linear_1"]').click()
    assert violations(page) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_violated_in_other_steps_on_a_phone(visit: Callable[..., Page], report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme, bypass_csp=True, viewport={"width": 390, "height": 800})
    for step in "12":
        page.locator("#step").select_option(step)
        assert violations(page) == {}


def test_planted_violations_are_found(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report, bypass_csp=True)
    for plant in PLANTED.values():
        page.evaluate(f"() => {{ {plant} }}")
    assert violations(page).keys() == PLANTED.keys()
