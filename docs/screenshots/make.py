"""Pictures of three reports, for docs/report.md: a checkpoint, a Llama of 12 layers, and the audited router that is rejected.

python docs/screenshots/make.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from playwright.sync_api import Browser, Page

import foldfx
from benchmarks.html_report import VOCABULARY, llama
from foldfx.examples import g2p_en
from foldfx.examples.audited_router import GENES, examples, planted
from tests.browser.chromium import launched

HERE = Path(__file__).parent
DESKTOP, PHONE = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}


def main() -> None:
    torch.set_num_threads(1)
    _, decoder = g2p_en.load()
    router, _ = planted(GENES, 20, seed=0)
    ids = torch.randint(VOCABULARY, (2, 6))
    results = {
        "g2p_en": foldfx.compile(decoder, g2p_en.decoder_examples()),
        "llama": foldfx.compile(llama(), [foldfx.Example((ids,))], dynamic=False),
        "router": foldfx.compile(router, examples(), observables=["load_balance_loss"]),
    }
    with TemporaryDirectory() as folder, launched() as browser:
        for name, result in results.items():
            result.write_html(Path(folder) / f"{name}.html", title=name)
        page = opened(browser, Path(folder) / "g2p_en.html")
        page.locator("#graphs").scroll_into_view_if_needed()
        page.locator("#lines .line", has_text="linear = aten.linear").first.click()
        page.screenshot(path=HERE / "g2p_en.png")
        opened(browser, Path(folder) / "llama.html").screenshot(path=HERE / "llama.png")
        page = opened(browser, Path(folder) / "router.html", dark=True)
        page.locator("#decisions").evaluate("element => element.scrollIntoView()")
        page.screenshot(path=HERE / "router.png")
        page = opened(browser, Path(folder) / "g2p_en.html", phone=True)
        page.locator("#graphs").evaluate("element => element.scrollIntoView()")
        page.screenshot(path=HERE / "phone.png")


def opened(browser: Browser, file: Path, *, dark: bool = False, phone: bool = False) -> Page:
    context = browser.new_context(color_scheme="dark" if dark else "light", viewport=PHONE if phone else DESKTOP)
    page = context.new_page()
    page.goto(file.as_uri())
    return page


if __name__ == "__main__":
    with torch.no_grad():
        main()
