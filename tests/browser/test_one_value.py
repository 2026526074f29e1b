"""What a click on a value shows: its proof or what was lost, its readers, its memory and its state."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import subject

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SOURCE = Path(subject.__file__)


@pytest.fixture
def page(visit: Callable[..., Page], report: Path) -> Page:
    return visit(report)


def opened(page: Page, name: str, side: str = "before") -> Locator:
    page.locator(f'#lines .{side} .line[data-node="{name}"]').click()
    panel = page.locator("#panel")
    assert panel.locator("h2").inner_text() == name
    return panel


def names_under(panel: Locator, title: str) -> list[str]:
    """The values listed below a heading."""
    return panel.locator("h3", has_text=title).locator("xpath=following-sibling::p[@class='names'][1]/button").all_inner_texts()


def line_of(code: str) -> str:
    """The end of file:line, which is said as it is imported, of what the model computes."""
    (number,) = [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if code in line]
    return f"{SOURCE.name}:{number}"


def test_a_token_only_value_shows_its_whole_proof(page: Page) -> None:
    panel = opened(page, "linear_1")
    assert panel.locator("h3").first.inner_text() == "Proof"
    assert "linear_1 depends on: token(ids)" in panel.inner_text()
    said = panel.locator(".proof li").all_inner_texts()
    computed = [text for text in said if text.startswith(("linear_1", "tanh", "linear ", "embedding "))]
    assert len(computed) == 4
    assert all(line_of("scores = ") in text for text in computed)
    assert any(text.startswith("ids (") for text in said)


def test_another_value_shows_where_it_was_lost_and_no_proof(page: Page) -> None:
    panel = opened(page, "view")
    assert panel.locator("h3").first.inner_text() == "Why it is not token-only"
    said = panel.locator(".proof li").all_inner_texts()
    assert [text.split()[0] for text in said] == ["view", "mul", "scale"]
    assert line_of(".flatten(") in said[0]
    assert line_of("scores * scale") in said[1]
    assert "reads scale, which depends on context" in said[1]


def test_readers_and_operands_are_listed_and_lead_on(page: Page) -> None:
    panel = opened(page, "linear_1")
    assert names_under(panel, "Reads") == ["tanh"]
    assert names_under(panel, "Read by") == ["mul", "topk"]
    assert re.findall(r"Read(?:s| by) \d+", panel.inner_text()) == ["Reads 1", "Read by 2"]
    panel.get_by_role("button", name="mul", exact=True).click()
    assert panel.locator("h2").inner_text() == "mul"
    assert names_under(panel, "Read by") == ["view"]


def test_memory_is_shared_by_a_view_and_by_nothing_else(page: Page) -> None:
    panel = opened(page, "view")
    assert "view must stand on the memory of mul" in panel.inner_text()
    assert names_under(panel, "Memory") == ["mul"]
    assert names_under(opened(page, "mul"), "Memory") == ["view"]
    assert "Shared with no other value." in opened(page, "tanh").inner_text()


def test_state_is_shown_with_its_kind_shape_and_bytes(page: Page) -> None:
    rows = opened(page, "linear_1").locator("tbody tr")
    assert [row.locator("td").all_inner_texts() for row in rows.all()] == [
        ["second.weight", "parameter", "float32[4, 48]", "768 B", ""],
        ["second.bias", "parameter", "float32[4]", "16 B", ""],
    ]
    assert opened(page, "tanh").locator("table").count() == 0


def test_a_new_value_shows_the_proof_of_what_it_stands_for(page: Page) -> None:
    panel = opened(page, "lookup_default", "after")
    assert "Added by fold_tokens, in the place of:" in panel.inner_text()
    assert "linear_1 depends on: token(ids)" in panel.inner_text()
    assert [row.locator("td").first.inner_text() for row in panel.locator("tbody tr").all()] == ["foldfx_tables.ids.linear_1"]
    panel.get_by_role("button", name="linear_1", exact=True).first.click()
    assert page.locator("#lines .chosen").get_attribute("data-step") == "0"


def test_boxes_and_names_elsewhere_open_values_too(page: Page) -> None:
    panel = page.locator("#panel")
    page.locator('.drawn:visible g[data-node="tanh"]').click()
    assert panel.locator("h2").inner_text() == "tanh"
    panel.get_by_role("button", name="Close").click()
    assert panel.is_hidden()
    page.locator('#decisions button[data-node="topk"]').click()
    assert panel.locator("h2").inner_text() == "topk"


def test_a_name_without_a_value_opens_nothing(page: Page) -> None:
    page.evaluate("document.querySelector('#decisions button[data-node]').dataset.node = 'nowhere'")
    page.locator("#decisions button[data-node]").click()
    assert page.locator("#panel").is_hidden()
