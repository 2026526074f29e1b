"""The browser that pages are opened in: Debian's Chromium or another that is installed, never one that is downloaded."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class BrowserUnavailable(Exception):
    """What is missing, in one sentence."""


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser, closed in the end.

    Raises:
        BrowserUnavailable: playwright or Chromium is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise BrowserUnavailable(f"playwright is not installed: {error}") from error
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BrowserUnavailable(f"Chromium is not installed: none of {', '.join(NAMES)} is in PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--disable-gpu", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def seconds_to_open(browser: Browser, file: Path) -> float:
    """From the address until the first lines are painted, in a context that knows nothing of the page."""
    context = browser.new_context()
    page = context.new_page()
    began = time.perf_counter()
    page.goto(file.as_uri())
    page.locator("#lines .line").first.wait_for()
    page.evaluate(TWO_FRAMES)
    spent = time.perf_counter() - began
    context.close()
    return spent
