"""Search finds values by name, operation, module and line, and goes to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def page(visit: Callable[..., Page], report: Path) -> Page:
    return visit(report)


def found(page: Page, text: str) -> list[str]:
    """What is listed for a text, and the count agrees."""
    page.locator("#search").fill(text)
    hits = page.locator("#hits button").all_inner_texts()
    assert page.locator("#found").inner_text() == f"{len(hits)} found"
    return hits


@pytest.mark.parametrize(
    ("text", "name"), [("tanh =", "tanh"), ("ATEN.EMBEDDING(", "embedding"), ("lookup_default =", "lookup_default")]
)
def test_a_value_is_found_and_opened(page: Page, text: str, name: str) -> None:
    (hit,) = found(page, text)
    assert hit.startswith(f"{name} = ")
    page.locator("#hits button").click()
    assert page.locator("#panel h2").inner_text() == name
    assert page.locator("#lines .chosen").get_attribute("data-node") == name


def test_modules_and_lines_of_the_source_are_searched(page: Page) -> None:
    (in_second,) = [hit for hit in found(page, "second") if hit.startswith("linear_1 =")]
    assert in_second in found(page, "subject.py:")
    assert not [hit for hit in found(page, "second") if hit.startswith("linear =")]


def test_a_value_among_folded_lines_is_unfolded(page: Page) -> None:
    line = page.locator('#lines .after .line[data-node="sin_6"]')
    assert line.count() == 0
    found(page, "sin_6 =")
    page.locator("#hits button").first.click()
    assert line.get_attribute("class") == "line chosen"
    box = line.bounding_box()
    assert box is not None
    assert 0 < box["y"] < 900 - box["height"]


def test_what_is_in_no_step_shown_is_not_found(page: Page) -> None:
    assert found(page, "nowhere") == []
    assert found(page, "lookup_default =") != []
    page.locator("#step").select_option("2")
    assert page.locator("#found").inner_text() == "0 found"
    assert found(page, "embedding_default =") != []


def test_an_empty_search_says_nothing(page: Page) -> None:
    found(page, "tanh")
    page.locator("#search").fill("  ")
    assert page.locator("#found").inner_text() == ""
    assert page.locator("#hits li").count() == 0
