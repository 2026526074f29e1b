"""What a page did that a report must not do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

SETTINGS: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}


class Watch:
    """A tab without a network, in a context of its own.

    Attributes:
        page: what is open in it.
        seen: requests beside the file itself and data, errors, lines of the console, dialogs.
    """

    def __init__(self, browser: Browser, **settings: Any) -> None:
        """`settings` are those of `Browser.new_context`."""
        context = browser.new_context(**{**SETTINGS, **settings})
        context.set_default_timeout(10_000)
        context.set_offline(True)
        self.page: Page = context.new_page()
        self.seen: list[str] = []
        self._address = ""
        self.page.on("request", self._request)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)

    def open(self, file: Path) -> Page:
        self._address = file.as_uri()
        self.page.goto(self._address)
        return self.page

    def close(self) -> None:
        self.page.context.close()

    def _request(self, request: Request) -> None:
        if request.url.partition("#")[0] != self._address and not request.url.startswith("data:"):
            self.seen.append(f"request: {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        self.seen.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()
