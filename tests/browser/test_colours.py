"""Light and dark follow the system, and every text on a coloured ground can be read in both."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

Colour = tuple[float, float, float]
READABLE = 4.5
"""WCAG 2.2, AA, for text of any size."""

DRAWN = """() => [...document.querySelectorAll(".box")].flatMap((box) => {
  const ground = getComputedStyle(box.querySelector("rect")).fill;
  return [...box.querySelectorAll("text")].map((text) => [getComputedStyle(text).fill, ground, box.textContent]);
})"""
"""axe cannot tell what lies behind text of a drawing."""


def colour(computed: str) -> Colour:
    red, green, blue = map(float, re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", computed).groups())  # type: ignore[union-attr]
    return red, green, blue


def luminance(found: Colour) -> float:
    """Relative luminance by WCAG, from 0 for black to 1 for white."""
    parts = [each / 255 for each in found]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def computed(page: Page, selector: str, name: str) -> Colour:
    return colour(page.locator(selector).first.evaluate("(found, name) => getComputedStyle(found)[name]", name))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ground_is_that_of_the_system(visit: Callable[..., Page], report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    page.locator("#lines .line").first.click()
    for selector in ("body", "header", "#panel"):
        ground = luminance(computed(page, selector, "backgroundColor"))
        assert ground < 0.02 if scheme == "dark" else ground > 0.9
    assert contrast(computed(page, "body", "color"), computed(page, "body", "backgroundColor")) > 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drawings_can_be_read(visit: Callable[..., Page], report: Path, scheme: str) -> None:
    found = visit(report, color_scheme=scheme).evaluate(DRAWN)
    assert len(found) > 20
    assert [text for ink, ground, text in found if contrast(colour(ink), colour(ground)) < READABLE] == []


def test_a_pale_drawing_is_noticed(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report, color_scheme="dark")
    page.evaluate("document.querySelector('.box .name').style.fill = 'rgb(90, 90, 90)'")
    pale = [text for ink, ground, text in page.evaluate(DRAWN) if contrast(colour(ink), colour(ground)) < READABLE]
    assert len(pale) == 1


@pytest.mark.parametrize(("grey", "ratio"), [(0, 21.0), (118, 4.54), (119, 4.48), (255, 1.0)])
def test_contrast_is_that_of_wcag(grey: int, ratio: float) -> None:
    assert contrast((grey, grey, grey), (255, 255, 255)) == pytest.approx(ratio, abs=0.005)
