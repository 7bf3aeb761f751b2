"""A page of a record, opened in real headless Chromium, and what a test reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_clustersmoke.report.page import page
from tests.support import records
from tests.support.needs import need_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DRAWN = "html[data-charts=drawn]"
# Ends when the page has heard of each part that opened: from then on it draws.
OPEN = """Promise.all([...document.querySelectorAll("details:not([open])")].map(one =>
  new Promise(heard => { one.addEventListener("toggle", heard, { once: true }); one.open = true })
)).then(all => all.length)"""
LAPTOP, PHONE = (1280, 800), (390, 844)
# Under the load of other tests a page takes its time; how fast it is has a test of its own.
PATIENCE_MS = 60_000


@dataclass
class Opened:
    """An open page, and what it told and asked while it opened."""

    page: Page
    file: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(self.file.as_uri(), timeout=PATIENCE_MS)
        self.settle()

    def settle(self) -> None:
        """Wait until all charts are drawn."""
        self.page.wait_for_selector(DRAWN, state="attached", timeout=PATIENCE_MS)

    def check_quiet(self) -> None:
        """Nothing was said on the console, and nothing was asked for but the page itself."""
        assert self.said == []
        assert set(self.asked) - {"data:,"} == {self.file.as_uri()}

    def figures(self, selector: str) -> list[tuple[str, str | None]]:
        """Text and exact value of each element."""
        script = "all => all.map(e => [e.innerText.trim(), e.dataset.value ?? null])"
        told: list[tuple[str, str | None]] = self.page.locator(selector).evaluate_all(script)
        return [(text, value) for text, value in told]

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    def open_all(self) -> None:
        """Open every part that can be opened, and draw what is in it."""
        self.ask(OPEN)
        self.settle()


Browse = Callable[..., Opened]


@contextmanager
def started() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    path = need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@contextmanager
def first_screen(chromium: Browser, file: Path) -> Iterator[Opened]:
    """A page that a run wrote, on a laptop's screen."""
    made = chromium.new_page(viewport={"width": LAPTOP[0], "height": LAPTOP[1]})
    one = Opened(made, file.resolve())
    one.open()
    yield one
    made.close()


def written(record: records.Record, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(page(records.parsed(record)), encoding="utf-8")
    return path
