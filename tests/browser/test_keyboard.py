"""Everything in the graphs is done from the keyboard: steps, changes, lines, opening and closing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..inspection.synthetic import chain_page

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def page(visit: Callable[..., Page], report: Path) -> Page:
    return visit(report)


@pytest.fixture
def three(visit: Callable[..., Page], tmp_path: Path) -> Page:
    """A page with changes in three places."""
    file = tmp_path / "report.html"
    file.write_text(chain_page(40, changed=10), encoding="utf-8")
    return visit(file)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page) -> tuple[str, str]:
    """The side and the value of the line that has the focus."""
    side, name = page.evaluate(
        "[document.activeElement.closest('.side')?.className ?? '', document.activeElement.dataset.node ?? '']"
    )
    return ("before" if "before" in side else "after" if "after" in side else ""), name


def steps(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("#lines .heads .side").all_inner_texts()]


def test_brackets_step_through_the_passes(page: Page) -> None:
    shown = [steps(page)]
    for key in ("]", "]", "]", "[", "[", "["):
        press(page, key)
        shown.append(steps(page))
    first, second, whole = ["captured", "fold_tokens"], ["fold_tokens", "lowering"], ["captured", "lowering"]
    assert shown == [first, second, whole, whole, second, first, first]


def test_a_step_shows_its_own_drawing_and_lines(page: Page) -> None:
    drawn = page.locator(".drawn:visible figcaption")
    assert "→ lookup_default" in drawn.inner_text()
    press(page, "]")
    assert "lookup_default → embedding_default" in drawn.inner_text()
    assert page.locator("#step").input_value() == "1"
    assert page.locator("#lines .added .line").get_attribute("data-node") == "embedding_default"


def test_buttons_step_and_end_at_both_ends(page: Page) -> None:
    on, back = page.locator("#step-on"), page.locator("#step-back")
    assert back.is_disabled()
    on.focus()
    press(page, "Enter", "Enter")
    assert steps(page) == ["captured", "lowering"]
    assert on.is_disabled()
    assert back.is_enabled()


def test_keys_are_text_in_the_search(page: Page) -> None:
    press(page, "/", "]", "n")
    assert page.locator("#search").input_value() == "]n"
    assert steps(page) == ["captured", "fold_tokens"]


def test_n_and_p_go_from_change_to_change(three: Page) -> None:
    seen = []
    for key in "nnnnpppp":
        press(three, key)
        seen.append(focused(three)[1])
    there = ["linear_10", "linear_20", "linear_30", "linear_30"]
    assert seen == [*there, "linear_20", "linear_10", "linear_10", "linear_10"]
    assert three.locator("#found").inner_text() == "No change above."


def test_buttons_go_from_change_to_change(three: Page) -> None:
    seen = []
    for button in ("on", "on", "on", "back"):
        three.locator(f"#change-{button}").click()
        seen.append(focused(three)[1])
    assert seen == ["linear_10", "linear_20", "linear_30", "linear_20"]


def test_arrows_move_among_lines(page: Page) -> None:
    page.locator("#lines .before .line").first.focus()
    seen = []
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "End", "Home"):
        press(page, key)
        seen.append(focused(page))
    last = page.locator("#lines .before .line").last.get_attribute("data-node")
    assert seen == [
        ("before", "scale"),
        ("after", "scale"),
        ("after", "_guards_fn"),
        ("after", "scale"),
        ("before", "scale"),
        ("before", last),
        ("before", "ids"),
    ]


def test_one_line_is_in_the_order_of_tab(page: Page) -> None:
    press(page, "n", "ArrowDown")
    assert page.locator('#lines .line[tabindex="0"]').count() == 1
    assert page.locator('#lines .line[tabindex="0"]').get_attribute("data-node") == focused(page)[1] == "linear"


def test_enter_opens_and_escape_closes(page: Page) -> None:
    panel = page.locator("#panel")
    press(page, "n", "ArrowDown", "Enter")
    assert panel.is_visible()
    assert panel.locator("h2").inner_text() == "linear"
    assert page.evaluate("document.activeElement.id") == "panel"
    press(page, "Escape")
    assert panel.is_hidden()
    assert focused(page) == ("before", "linear")
    press(page, "Escape")
    assert focused(page) == ("before", "linear")


def test_the_focus_goes_to_the_line_where_what_opened_it_is_gone(page: Page) -> None:
    page.locator("#search").fill("tanh =")
    page.locator("#hits button").press("Enter")
    page.locator("#search").fill("")
    press(page, "Escape")
    assert focused(page) == ("before", "tanh")


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_drawn_value_opens(page: Page, key: str) -> None:
    box = page.locator('.drawn:visible g[data-node="tanh"]')
    box.focus()
    press(page, key)
    assert page.locator("#panel h2").inner_text() == "tanh"
    press(page, "Escape")
    assert page.evaluate("document.activeElement.dataset.node") == "tanh"


def test_folded_lines_unfold_and_keep_the_focus(page: Page) -> None:
    page.locator("#lines .fold button").focus()
    press(page, "Enter")
    assert page.locator("#lines .fold").count() == 0
    side, name = focused(page)
    assert (side, page.locator(f'#lines .{side} [data-node="{name}"]').is_visible()) == ("before", True)
