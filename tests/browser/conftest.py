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
from .subject import compiled, page_of
from .watch import watched

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
    file.write_text(page_of(result), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def planted(result: foldfx.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which every name is markup."""
    file = tmp_path_factory.mktemp("planted") / "report.html"
    file.write_text(planted_page(result.report.to_dict()), encoding="utf-8")
    return file


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file as `watched` does; the test fails where a page asked for, said or raised anything."""
    watches = []

    def visited(file: Path, **settings: Any) -> Page:
        watches.append(watched(browser, file, **settings))
        return watches[-1].page

    yield visited
    for each in watches:
        each.page.context.close()
    assert [each.seen for each in watches if each.seen] == []
