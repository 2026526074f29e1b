"""A page of 20,000 values opens at once, and one in the middle of them is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from ..inspection.synthetic import chain_page
from .chromium import seconds_to_open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VALUES = 20_000
MOST_SECONDS, MOST_BYTES = 3.0, 15_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("large") / "report.html"
    file.write_text(chain_page(VALUES, changed=1_000), encoding="utf-8")
    return file


def test_it_opens_at_once(browser: Browser, large: Path) -> None:
    assert large.stat().st_size < MOST_BYTES
    assert median(seconds_to_open(browser, large) for _ in range(3)) < MOST_SECONDS


def test_a_value_in_the_middle_is_found_and_unfolded(visit: Callable[..., Page], large: Path) -> None:
    page = visit(large)
    assert page.locator("#lines .row").count() < 500
    page.locator("#search").fill("linear_12345 =")
    page.locator("#hits button").click()
    assert page.locator("#panel h2").inner_text() == "linear_12345"
    assert page.locator("#lines .chosen").get_attribute("data-node") == "linear_12345"
    assert page.locator("#lines .row").count() < 500


def test_time_until_the_lines_is_counted(browser: Browser, tmp_path: Path) -> None:
    """A page whose lines come late."""
    file = tmp_path / "late.html"
    late = "setTimeout(() => { document.getElementById('lines').innerHTML = '<p class=line>late</p>'; }, 700)"
    file.write_text(f"<!DOCTYPE html><title>x</title><div id=lines></div><script>{late}</script>", encoding="utf-8")
    assert seconds_to_open(browser, file) > 0.7
