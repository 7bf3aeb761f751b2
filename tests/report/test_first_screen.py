"""A run with a slow rank, a wrong transport and 30 % less throughput: the first screen of the page
shows each fault, and all reports have the same figures.

The rank program and NCCL's logs are fakes; everything that reads and reports them is real.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_clustersmoke.config.metrics import show
from tests.report.browsing import LAPTOP, Opened, first_screen
from tests.report.sample_runs import run_with_three_faults
from tests.support.harness import Outcome, Suite, properties

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GOOD, BAD = 10.0, 7.0
QUERY = """SELECT metrics.name, metrics.value FROM metrics
JOIN phases ON phases.id = metrics.phase JOIN runs ON runs.id = phases.run WHERE run_id = ?"""
FIRST = {
    "stragglers": ["rank 1 on "],
    "links": ["NET/Socket/0 from ", "rank 1 to rank 2: expected NET/IB*"],
    "metrics": [
        "steps_per_s 30.0 % below the reference 10.00 steps/s",
        "steps_per_s is 7.000 steps/s",
    ],
}


@pytest.fixture
def ran(suite: Suite) -> tuple[Suite, Outcome]:
    """Two runs on two nodes with two ranks each: one healthy, one with the three faults."""
    return suite, run_with_three_faults(suite, Suite.run, GOOD, BAD)[1]


@pytest.fixture
def opened(ran: tuple[Suite, Outcome], chromium: Browser) -> Iterator[Opened]:
    with first_screen(chromium, ran[0].report / "index.html") as page:
        yield page


def lateness(phase: dict[str, Any], slow: int) -> str:
    """What the slow rank's card must say, from the medians in the record."""
    own = [rank["own_s"]["p50"] * 1e3 for rank in phase["ranks"]]
    usual = statistics.median(seconds for rank, seconds in enumerate(own) if rank != slow)
    step = phase["ranks"][slow]["step_s"]["p50"] * 1e3
    times = f"takes {show(own[slow])} ms, that of the others {show(usual)} ms"
    return f"{times}; a whole step takes {show(step)} ms"


def test_each_fault_is_on_the_first_screen(ran: tuple[Suite, Outcome], opened: Opened) -> None:
    """Verdict, slow rank, wrong link and lost throughput are shown with their figures, without
    scrolling."""
    opened.check_quiet()
    assert opened.page.locator("h1").inner_text().startswith("UNFIT")
    (phase,) = ran[0].record()["phases"]
    wanted = {**FIRST, "stragglers": [*FIRST["stragglers"], lateness(phase, slow=1)]}
    for kind, words in wanted.items():
        card = opened.page.locator(f'.card[data-kind="{kind}"]')
        text = card.inner_text()
        assert [line for line in words if line not in text] == [], text
        box = card.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= LAPTOP[1]


def test_figures_agree_to_the_digit(ran: tuple[Suite, Outcome], opened: Opened) -> None:
    """Page, report.json, JUnit, terminal, metrics.prom and history have the same figures."""
    suite, result = ran
    (phase,) = suite.record()["phases"]
    (case,) = {
        tuple(sorted(values.items()))
        for name, values in properties(suite.report / "junit.xml").items()
        if name.endswith("::job")
    }
    junit, kept = dict(case), history(suite)
    row = next(line for line in result.outlines if line.startswith("small "))
    exposed = exposition(suite.report / "metrics.prom")
    opened.open_all()
    for name, metric in phase["metrics"].items():
        value = metric["value"]
        cell = f'table[data-table="metrics"] tr[data-metric="{name}"] td:nth-child(2)'
        assert opened.figures(cell) == [(show(value), json.dumps(value))]
        assert float(junit[name]) == value and kept[name] == value
        assert value * (2**30 if metric["unit"] == "GiB" else 1) in exposed
    for name in ("steps_per_s", "samples_per_s", "peak_memory_gib"):
        assert show(phase["metrics"][name]["value"]) in row
    for name in ("queue_s", "run_s"):
        assert float(junit[name]) == phase[name] and f"{phase[name]:.1f}" in row


def exposition(path: Path) -> set[float]:
    """The values of all gauges in metrics.prom."""
    lines = path.read_text().splitlines()
    return {float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def history(suite: Suite) -> dict[str, Any]:
    """The metrics of the newest run in the database, read without our own code."""
    with sqlite3.connect(f"file:{suite.reports / 'history.db'}?mode=ro", uri=True) as database:
        rows = database.execute(QUERY, (Path(suite.report.resolve()).name,)).fetchall()
    return dict(rows)
