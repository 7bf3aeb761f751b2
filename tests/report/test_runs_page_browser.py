"""reports/index.html in real Chromium: no messages, accessible, on any screen, without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_clustersmoke.report.runs_page import write_runs_page
from tests.report.browsing import LAPTOP, PHONE, Opened, first_screen, new_tab
from tests.report.nights import add_report, store_nights

if TYPE_CHECKING:
    from playwright.sync_api import Browser


CROSS = "g[data-mark=dot][stroke='var(--bad)'] path"
NEWEST = ("mlp_1gpu", "allreduce")  # a phase that is not good in the newest night, and one that is


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 nights of four phases; the newest night has a report."""
    folder = tmp_path_factory.mktemp("reports")
    ids = store_nights(folder, 45, ["mlp_1gpu", "zero1_4node", "fsdp_2node", "allreduce"])
    add_report(folder, ids[-1])
    write_runs_page(folder)
    return folder


@pytest.fixture
def opened(chromium: Browser, reports: Path) -> Iterator[Opened]:
    with first_screen(chromium, reports / "index.html") as page:
        yield page


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", PHONE),
        pytest.param("dark", PHONE, marks=pytest.mark.slow),
        pytest.param("light", LAPTOP, marks=pytest.mark.slow),
        ("dark", LAPTOP),
    ],
)
def test_axe_finds_nothing_and_nothing_is_requested(
    opened: Opened, scheme: Any, size: tuple[int, int]
) -> None:
    """In light and dark colours, on a laptop and a phone: no violation, message or request, and
    nothing wider than the screen."""
    opened.page.emulate_media(color_scheme=scheme)
    opened.page.set_viewport_size({"width": size[0], "height": size[1]})
    opened.open_all()
    assert opened.find_violations() == []
    opened.check_quiet()
    assert opened.ask("document.documentElement.scrollWidth") == size[0]


def test_newest_night_is_in_view_on_a_phone(chromium: Browser, reports: Path) -> None:
    """The strip starts at its right end, also without scripts, and names the month."""
    size = {"width": PHONE[0], "height": PHONE[1]}
    page = new_tab(chromium, viewport=size, java_script_enabled=False)
    page.goto((reports / "index.html").as_uri())
    cell = page.locator("table.strip tr.whole td").last.bounding_box()
    name = page.locator("table.strip tr.whole th").bounding_box()
    months = [span.bounding_box() for span in page.locator("table.strip .month span").all()]
    page.close()
    assert cell and cell["x"] > 0 and cell["x"] + cell["width"] <= PHONE[0]
    assert name and name["x"] >= 0  # names stay in view
    right = name["x"] + name["width"]
    assert any(box and right <= box["x"] <= PHONE[0] - box["width"] for box in months)


def test_every_phase_has_its_chart(opened: Opened) -> None:
    """With the change of versions as a line; the one outside its reference is marked."""
    names = opened.page.locator(".small").evaluate_all("all => all.map(e => e.dataset.metric)")
    assert names == ["mlp_1gpu", "zero1_4node", "fsdp_2node", "allreduce"]
    assert opened.page.locator(".small.off").get_attribute("data-metric") == "mlp_1gpu"


def test_newest_night_that_is_not_good_is_shown_as_such(opened: Opened) -> None:
    """A cross in place of the diamond, and in words."""
    charts = {name: opened.page.locator(f'.small[data-metric="{name}"]') for name in NEWEST}
    words = {name: charts[name].get_attribute("aria-valuetext") for name in NEWEST}
    assert {name for name in NEWEST if "; not good" in str(words[name])} == {"mlp_1gpu"}
    drawn = {name: charts[name].locator(CROSS).count() for name in NEWEST}
    assert drawn == {"mlp_1gpu": 1, "allreduce": 0}


def test_printed_nights_are_one_sheet(opened: Opened) -> None:
    """With the runs that are not good; every run is printed on demand."""
    assert len(re.findall(rb"/Type\s*/Page\b", opened.page.pdf(prefer_css_page_size=True))) == 1
    opened.page.emulate_media(media="print")
    rows = opened.page.locator("table.list tbody tr")
    shown = [row.inner_text() for row in rows.all() if row.is_visible()]
    assert ["UNFIT" in text for text in shown] == [True] and rows.count() == 45
    opened.page.emulate_media(media="screen")
    opened.page.locator("#print-all").check()
    opened.page.emulate_media(media="print")
    assert rows.last.is_visible() and opened.page.locator(".paper").is_hidden()
    assert opened.page.locator("#print-all").is_hidden()


def test_print_cuts_nothing(opened: Opened) -> None:
    """The whole strip fits on a landscape page."""
    opened.page.set_viewport_size({"width": 1017, "height": 700})  # A4 less its margins
    opened.page.emulate_media(media="print")
    strip = opened.page.locator("table.strip").bounding_box()
    assert strip and strip["x"] >= 0 and strip["x"] + strip["width"] <= 1017
