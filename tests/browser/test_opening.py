"""The page opens from a disk without a network, and says nothing to the console."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import foldfx
from foldfx.inspection import diff_graphs
from foldfx.inspection.html import render_diff

from ..inspection.synthetic import chain
from .chromium import BrowserUnavailable, launched
from .conftest import fail_or_skip
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def test_it_opens_offline_and_is_quiet(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report)
    assert page.title() == "router: accepted"
    assert page.locator("h1").inner_text() == "router"
    assert page.locator("#lines .line").count() > 10


def test_the_page_of_a_diff_opens_and_is_quiet(visit: Callable[..., Page], result: foldfx.Result, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    file.write_text(render_diff(result.diff), encoding="utf-8")
    page = visit(file)
    assert page.title() == "captured → folded: different"
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    assert page.locator("#panel h2").inner_text() == "embedding"


@pytest.mark.parametrize(("values", "lines"), [(100, 2 * 102), (400, 0)])
def test_a_graph_in_which_nothing_changed_is_there_to_be_read_unless_it_is_long(
    visit: Callable[..., Page], tmp_path: Path, values: int, lines: int
) -> None:
    file = tmp_path / "diff.html"
    file.write_text(render_diff(diff_graphs(chain(values), chain(values))), encoding="utf-8")
    assert visit(file).locator("#lines .line").count() == lines


def test_every_link_leads_to_a_section(visit: Callable[..., Page], report: Path) -> None:
    page = visit(report)
    links = page.locator("nav a")
    assert links.count() == page.locator("section").count() == 6
    for link in links.all():
        link.click()
        assert page.evaluate("document.querySelector(':target').tagName") == "SECTION"


@pytest.mark.parametrize(
    ("markup", "seen"),
    [
        ('<img src="http://example.org/x.png" alt="">', "request: http://example.org/x.png"),
        ('<link rel="stylesheet" href="beside.css">', "beside.css"),
        ('<script>fetch("http://example.org/")</script>', "request: http://example.org/"),
        ('<script>console.warn("odd")</script>', "console: odd"),
        ('<script>throw Error("wrong")</script>', "error: wrong"),
        ("<script>alert(1)</script>", "dialog: 1"),
    ],
)
def test_the_watch_notices(browser: Browser, tmp_path: Path, markup: str, seen: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<!DOCTYPE html><title>x</title>{markup}", encoding="utf-8")
    watch = Watch(browser)
    watch.open(file)
    watch.close()
    assert any(seen in each for each in watch.seen)


def test_data_in_the_page_is_no_request(visit: Callable[..., Page], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f'<!DOCTYPE html><title>x</title><img src="{PIXEL}" alt="">', encoding="utf-8")
    assert visit(file).evaluate("document.images[0].naturalWidth") == 1


def test_without_a_browser_tests_are_skipped_or_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrowserUnavailable, match="is not installed"), launched():
        pass
    monkeypatch.delenv("FOLDFX_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        fail_or_skip("no browser")
    monkeypatch.setenv("FOLDFX_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        fail_or_skip("no browser")
