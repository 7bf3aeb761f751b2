"""Opens the page of a record in headless Chromium, and reads it."""

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
# Resolves once every part has fired `toggle`: only then does the page draw its charts.
OPEN = """Promise.all([...document.querySelectorAll("details:not([open])")].map(part =>
  new Promise(done => { part.addEventListener("toggle", done, { once: true }); part.open = true })
)).then(all => all.length)"""
LAPTOP, PHONE = (1280, 800), (390, 844)
# Pages are slow while other tests run; a test of its own measures their speed.
PATIENCE_MS = 60_000


@dataclass
class Opened:
    """An open page, with its console messages and its requests."""

    page: Page
    file: Path
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.file.as_uri(), timeout=PATIENCE_MS)
        self.settle()

    def settle(self) -> None:
        """Wait until all charts are drawn."""
        self.page.wait_for_selector(DRAWN, state="attached", timeout=PATIENCE_MS)

    def check_quiet(self) -> None:
        """Fail if the console has a message, or if anything but the page itself was requested."""
        assert self.messages == []
        assert set(self.requests) - {"data:,"} == {self.file.as_uri()}

    def figures(self, selector: str) -> list[tuple[str, str | None]]:
        """Text and exact value of each element."""
        script = "all => all.map(e => [e.innerText.trim(), e.dataset.value ?? null])"
        cells: list[tuple[str, str | None]] = self.page.locator(selector).evaluate_all(script)
        return [(text, value) for text, value in cells]

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    def open_all(self) -> None:
        """Open every part that can be opened, and wait until its charts are drawn."""
        self.ask(OPEN)
        self.settle()


Browse = Callable[..., Opened]


@contextmanager
def started() -> Iterator[Browser]:
    """The system's Chromium, headless."""
    path = need_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@contextmanager
def first_screen(chromium: Browser, file: Path) -> Iterator[Opened]:
    """A page that a run wrote, at the size of a laptop's screen."""
    tab = chromium.new_page(viewport={"width": LAPTOP[0], "height": LAPTOP[1]})
    opened = Opened(tab, file.resolve())
    opened.open()
    yield opened
    tab.close()


def written(record: records.Record, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(page(records.parsed(record)), encoding="utf-8")
    return path
