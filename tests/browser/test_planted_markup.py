"""Markup in what a model is called does nothing and is shown as text: it is escaped, and the policy would stop it, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..inspection.synthetic import EVIL
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(params=[False, True], ids=["with its policy", "without its policy"])
def page(visit: Callable[..., Page], planted: Path, request: pytest.FixtureRequest) -> Page:
    return visit(planted, bypass_csp=request.param)


def elements(page: Page) -> list[int]:
    """How many scripts, pictures and handlers the page has."""
    handlers = "[...document.querySelectorAll('*')].filter((each) => [...each.attributes].some(({ name }) => /^on/.test(name)))"
    return [page.locator("script").count(), page.locator("img").count(), page.evaluate(f"{handlers}.length")]


def test_titles_and_sentences_show_it(page: Page) -> None:
    assert elements(page) == [2, 0, 0]
    assert page.title().startswith(EVIL)
    assert page.locator("h1").inner_text() == EVIL
    for section in ("summary", "graphs", "storage", "refusals", "decisions", "verification"):
        assert EVIL in page.locator(f"#{section}").inner_text()
    assert f"token input ids{EVIL}" in page.locator("#summary").inner_text()
    assert EVIL in page.locator("#step").inner_text()


def test_what_the_script_draws_shows_it(page: Page) -> None:
    for step in range(3):
        page.locator("#step").select_option(str(step))
        assert all(EVIL in text for text in page.locator("#lines .line", has_text="linear").all_inner_texts())
        page.locator("#search").fill("<script>")
        assert EVIL in page.locator("#hits").inner_text()
        for name in ("linear_1", "linear_3"):
            page.locator(f'#lines .before .line[data-node^="{name}"]').click()
            panel = page.locator("#panel")
            assert panel.locator("h2").inner_text() == f"{name}{EVIL}"
            assert f"model.layers.{name[-1]}.mlp{EVIL}" in panel.inner_text()
            assert f"layers.{name[-1]}.weight{EVIL}" in panel.locator("td").first.inner_text()
            page.keyboard.press("Escape")
    assert elements(page) == [2, 0, 0]


def raw(planted: Path, folder: Path) -> Path:
    """The page with the same markup once more, not escaped."""
    file = folder / "raw.html"
    file.write_text(planted.read_text(encoding="utf-8").replace("</main>", f"{EVIL}</main>"), encoding="utf-8")
    return file


def test_without_escaping_and_policy_it_would_run(browser: Browser, planted: Path, tmp_path: Path) -> None:
    watch = Watch(browser, bypass_csp=True)
    assert elements(watch.open(raw(planted, tmp_path))) == [3, 1, 1]
    watch.close()
    assert {"dialog: 1", "dialog: 2"} <= set(watch.seen)


def test_without_escaping_the_policy_stops_it(browser: Browser, planted: Path, tmp_path: Path) -> None:
    watch = Watch(browser)
    watch.open(raw(planted, tmp_path))
    watch.close()
    assert not [each for each in watch.seen if each.startswith("dialog")]
    assert any("Content Security Policy" in each for each in watch.seen)
