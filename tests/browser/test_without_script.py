"""Where scripts are turned off, all but the lines of the graphs and the proofs is there to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

NOTE = "The graphs are drawn by a script, which is turned off; all else is here."


@pytest.fixture
def page(visit: Callable[..., Page], report: Path) -> Page:
    return visit(report, java_script_enabled=False)


def test_sections_read_as_with_the_script(visit: Callable[..., Page], report: Path, page: Page) -> None:
    scripted = visit(report)
    for section in ("summary", "storage", "refusals", "decisions", "verification"):
        said = page.locator(f"#{section}").inner_text()
        assert said == scripted.locator(f"#{section}").inner_text()
        assert len(said) > 50


def test_every_rewrite_is_drawn_under_its_step(page: Page) -> None:
    assert page.locator(".drawn h3").all_inner_texts() == [
        "captured → fold_tokens",
        "fold_tokens → lowering",
        "whole run: captured → lowering",
    ]
    assert all(drawn.is_visible() for drawn in page.locator(".drawn svg").all())


def test_it_says_what_is_missing_and_offers_nothing_that_needs_the_script(page: Page) -> None:
    note = page.locator("noscript p")
    assert (note.inner_text(), note.is_visible()) == (NOTE, True)
    assert page.locator("#lines").is_hidden()
    assert [each for each in page.locator("#search, #step, #step-on, #change-on").all() if each.is_visible()] == []
    for title in page.locator("summary").all():
        title.click()
    assert page.get_by_text("what both sides did").is_visible()


def test_with_the_script_one_step_is_drawn_and_nothing_is_missing(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report)
    assert NOTE not in page.locator("main").inner_text()
    assert page.locator(".drawn:visible").count() == 1
    assert page.locator(".drawn h3").count() == 0
    assert page.locator("#search").is_visible()
