"""What a page did that a report must not do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

SETTINGS: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}


@dataclass
class Watch:
    """One page, opened from a file without a network.

    Attributes:
        page: the page.
        seen: requests beside the file itself and data, errors, lines of the console, dialogs.
    """

    page: Page
    file: Path
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", self._request)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.goto(self.file.as_uri())

    def _request(self, request: Request) -> None:
        if request.url.partition("#")[0] != self.file.as_uri() and not request.url.startswith("data:"):
            self.seen.append(f"request: {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        self.seen.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def watched(browser: Browser, file: Path, **settings: Any) -> Watch:
    """Open a file in a context of its own; `settings` are those of `Browser.new_context`."""
    context = browser.new_context(**{**SETTINGS, **settings})
    context.set_default_timeout(10_000)
    context.set_offline(True)
    return Watch(context.new_page(), file)
