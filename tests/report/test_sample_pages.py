"""Pages of real runs in real Chromium, in light and dark colours, on a phone and in print.

`make pages` keeps them in the folder that CLUSTERSMOKE_PAGES names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pytest

from tests.report.browsing import (
    CONTRAST,
    LAPTOP,
    LEAST_CONTRAST,
    PHONE,
    Opened,
    first_screen,
)
from tests.report.page_samples import Elements, dead
from tests.report.sample_runs import ON_SLURM, SAMPLES, SampleRuns
from tests.support.junit_readers import READERS, count_cases
from tests.support.leftovers import none_left
from tests.support.report_files import JunitFile

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
A4, A4_LANDSCAPE = (688, 1016), (1017, 688)  # less the margins of page.css, in CSS pixels
BAD = """<!doctype html><html lang="en" data-charts="drawn"><body style="background: white">
<p id="long" style="width: 50px; overflow: hidden; white-space: nowrap">far too long for it</p>
<svg width="50" height="20"><text id="label" x="40" y="10">outside</text></svg>
<div style="width: 50px; overflow-x: auto"><svg width="50" height="20" style="overflow: visible">
<text id="left" x="-30" y="10">left</text></svg></div>
<p style="position: relative"><span id="pale" style="color: #bbb">pale</span>
<i style="position: absolute; left: 0; top: 0; width: 80px; height: 30px"></i></p>"""
NAMES = [pytest.param(name, marks=pytest.mark.lab if name in ON_SLURM else ()) for name in SAMPLES]
# Neither a page over runs nor a record without a run has a junit.xml.
WITH_JUNIT = [name for name in NAMES if not str(name.values[0]).startswith(("45", "512"))]


@dataclass(frozen=True)
class View:
    """How a page is looked at."""

    size: tuple[int, int]
    scheme: Literal["light", "dark"] = "light"
    media: Literal["screen", "print"] = "screen"


VIEWS = {
    "light": View(LAPTOP),
    "dark": View(LAPTOP, "dark"),
    "phone": View(PHONE),
    "print": View(A4, "dark", "print"),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleRuns]:
    kept = os.environ.get("CLUSTERSMOKE_PAGES")
    with none_left() as (marker, _):
        yield SampleRuns(Path(kept) if kept else tmp_path_factory.mktemp("pages"), marker)


@pytest.fixture
def opened(
    chromium: Browser, samples: SampleRuns, name: str, view: str
) -> Iterator[tuple[Opened, View]]:
    """The page of a sample, seen so, with all of its parts open."""
    page, chosen = samples.page(name), VIEWS[view]
    if chosen.media == "print" and page.parent.name == "reports":
        chosen = View(A4_LANDSCAPE, chosen.scheme, chosen.media)
    with first_screen(chromium, page) as tab:
        tab.page.set_viewport_size({"width": chosen.size[0], "height": chosen.size[1]})
        tab.page.emulate_media(media=chosen.media, color_scheme=chosen.scheme)
        tab.page.reload()
        tab.settle()
        if chosen.media == "print":
            tab.ask("dispatchEvent(new Event('beforeprint'))")
        else:
            tab.open_all()
        yield tab, chosen


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", NAMES)
def test_page_is_whole_and_quiet(opened: tuple[Opened, View]) -> None:
    """No message in the console, no request but the page itself, no violation that axe-core finds,
    no contrast that it cannot decide, and nothing that is cut or makes the page scroll sideways."""
    tab, view = opened
    tab.check_quiet()
    assert tab.find_violations() == []
    assert tab.ask("document.documentElement.scrollWidth") <= view.size[0]
    assert tab.find_cut() == []


def test_what_is_cut_or_pale_is_found(chromium: Browser, tmp_path: Path) -> None:
    """A text too long for its box, a label outside its drawing, one where its box does not scroll
    to, and a pale text below an element, of which axe-core cannot tell the contrast."""
    file = tmp_path / "index.html"
    file.write_text(BAD)
    with first_screen(chromium, file) as tab:
        long, label, left = tab.find_cut()
        contrasts = [tab.page.evaluate(CONTRAST, name) for name in ("#long", "#label", "#pale")]
    assert "far too long" in long and "outside" in label and "left" in left
    assert [contrast < LEAST_CONTRAST for contrast in contrasts] == [False, False, True]


@pytest.mark.parametrize("name", NAMES)
def test_no_link_is_broken(samples: SampleRuns, name: str) -> None:
    """Each leads to a file of the report, or to a place on a page."""
    page = samples.page(name)
    if not name.startswith("512"):  # which has no files beside it
        assert dead(page.parent) == []
    for link in _links(page):
        target, _, anchor = link.partition("#")
        other = page.parent / unquote(target) if target else page
        if anchor and other.is_file() and other.suffix == ".html":
            assert unquote(anchor) in _anchors(other), link


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", WITH_JUNIT)
def test_dashboards_count_one_failure_per_cause(
    samples: SampleRuns, tmp_path: Path, name: str, reader: str
) -> None:
    """A phase whose job failed is one, whatever its criteria would have said."""
    folder = samples.page(name).parent
    record = json.loads((folder / "report.json").read_text())
    suite = JunitFile(folder / "junit.xml").suite
    failed = suite.failures + suite.errors
    passed = suite.tests - failed - suite.skipped
    assert count_cases(reader, folder / "junit.xml", tmp_path) == (passed, failed, suite.skipped)
    assert failed == sum(map(_count_causes, record["phases"] or record["screen"]["nodes"]))


def _count_causes(part: dict[str, Any]) -> int:
    """The failures of a phase or of a screened node."""
    if part.get("outcome", "passed") != "passed":
        return 1
    results = part.get("criteria") or part.get("checks") or {}
    return sum(each["result"] == "failed" for each in results.values())


def _links(page: Path) -> list[str]:
    return [str(each["href"]) for each in Elements(page.read_text(encoding="utf-8")).all("a")]


def _anchors(page: Path) -> set[str]:
    tags = Elements(page.read_text(encoding="utf-8")).tags
    return {str(attributes["id"]) for _, attributes in tags if "id" in attributes}
