"""A browser for the whole session, the reports to open in it, and a watch over every page that is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import foldfx

from ..inspection.synthetic import planted_page
from .chromium import BrowserUnavailable, launched
from .subject import compiled
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def fail_or_skip(reason: str) -> NoReturn:
    """Skip the test; with FOLDFX_REQUIRE_BROWSER=1 it fails instead."""
    if os.environ.get("FOLDFX_REQUIRE_BROWSER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(launched())
        except BrowserUnavailable as error:
            fail_or_skip(str(error))
        yield found


@pytest.fixture(scope="session")
def result() -> foldfx.Result:
    return compiled()


@pytest.fixture(scope="session")
def report(result: foldfx.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `result`."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    return result.write_html(file, title="router")


@pytest.fixture(scope="session")
def planted(result: foldfx.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which every name is markup."""
    file = tmp_path_factory.mktemp("planted") / "report.html"
    file.write_text(planted_page(result.report.to_dict()), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def tabs(browser: Browser) -> dict[str, Watch]:
    """By settings, to be opened in again and again: a new tab takes longer than a test."""
    return {}


@pytest.fixture
def visit(browser: Browser, tabs: dict[str, Watch]) -> Iterator[Callable[..., Page]]:
    """Opens a file in the tab of these settings; the test fails where a page asked for, said or raised anything."""
    used = []

    def visited(file: Path, **settings: Any) -> Page:
        key = str(sorted(settings.items()))
        used.append(tabs.get(key) or tabs.setdefault(key, Watch(browser, **settings)))
        return used[-1].open(file)

    yield visited
    seen = [each for tab in used for each in tab.seen]
    for tab in used:
        tab.seen.clear()
    assert seen == []
