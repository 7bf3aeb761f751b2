"""Opens the page of a record in headless Chromium, and reads it."""

from __future__ import annotations

import os
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
# HTML that is wider than its box and cannot be scrolled, and text of a chart outside the box that
# clips it, or left of where that scrolls to.
CUT = """() => {
  const clips = e => getComputedStyle(e).overflowX !== "visible";
  const hides = e => ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
  const boxes = [...document.querySelectorAll("body *")].filter(e => e instanceof HTMLElement
    && e.clientWidth > 1 && hides(e) && e.scrollWidth > e.clientWidth + 1);
  const words = [...document.querySelectorAll("svg text")].filter(e => {
    let box = e.ownerSVGElement;
    while (box.parentElement && !clips(box)) box = box.parentElement;
    const scrolls = box !== e.ownerSVGElement && !hides(box);
    const [own, all] = [e, box].map(each => each.getBoundingClientRect());
    if (scrolls) return own.width && own.left + box.scrollLeft < all.left - 1;
    return own.width && (own.left < all.left - 1 || own.right > all.right + 1
      || own.top < all.top - 1 || own.bottom > all.bottom + 1);
  });
  return [...boxes, ...words].map(e => e.outerHTML.slice(0, 200));
}"""
# The contrast of a text with the nearest background, where axe-core cannot tell it: another element
# lies over the place, or the place is scrolled out of view.
CONTRAST = """(selector) => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = colour => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const weigh = ([red, green, blue]) => [red, green, blue].map(each => each / 255).map(
    each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
  ).reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const element = document.querySelector(selector);
  const own = getComputedStyle(element);
  const text = parse(element instanceof SVGElement ? own.fill : own.color);
  let behind = element;
  while (behind && parse(getComputedStyle(behind).backgroundColor)[3] < 255)
    behind = behind.parentElement;
  const under = behind ? parse(getComputedStyle(behind).backgroundColor) : [255, 255, 255];
  const [dark, light] = [weigh(text), weigh(under)].sort((one, other) => one - other);
  return text[3] === 255 ? (light + 0.05) / (dark + 0.05) : 0;
}"""
LEAST_CONTRAST = 4.5  # WCAG's for small text
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

    def find_violations(self) -> list[str]:
        """What axe-core finds, and texts with too little contrast of which it cannot tell it."""
        from axe_playwright_python.sync_playwright import Axe

        answer = Axe().run(self.page).response
        assert len(answer["passes"]) > 15  # axe did run its checks
        undecided = [
            node
            for each in answer["incomplete"]
            if each["id"] == "color-contrast"
            for node in each["nodes"]
            if self.page.evaluate(CONTRAST, node["target"][0]) < LEAST_CONTRAST
        ]
        return [
            f"{violation['id']}: {violation['help']}: {node['html'][:200]}"
            for violation in answer["violations"]
            for node in violation["nodes"]
        ] + [f"color-contrast: {node['html'][:200]}" for node in undecided]

    def find_cut(self) -> list[str]:
        """What does not fit where it stands, and cannot be scrolled into view."""
        cut: list[str] = self.page.evaluate(CUT)
        return cut

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
        # Its sockets lie there, and their paths have a limit.
        short: dict[str, str | float | bool] = {**os.environ, "TMPDIR": "/tmp"}
        browser = driver.chromium.launch(executable_path=path, timeout=PATIENCE_MS, env=short)
        yield browser
        browser.close()


def new_tab(browser: Browser, **options: Any) -> Page:
    """A page that waits for each action as long as a busy machine may take."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE_MS)
    return page


@contextmanager
def first_screen(chromium: Browser, file: Path) -> Iterator[Opened]:
    """A page that a run wrote, at the size of a laptop's screen."""
    tab = new_tab(chromium, viewport={"width": LAPTOP[0], "height": LAPTOP[1]})
    opened = Opened(tab, file.resolve())
    opened.open()
    yield opened
    tab.close()


def written(record: records.Record, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(page(records.parsed(record)), encoding="utf-8")
    return path
