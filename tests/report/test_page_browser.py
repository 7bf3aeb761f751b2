"""index.html in real Chromium: no messages, exact figures, accessible, safe, fast, any screen."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

import pytest

from pytest_clustersmoke.config.metrics import show
from tests.report import staged
from tests.report.browsing import LAPTOP, PATIENCE_MS, PHONE, Browse
from tests.report.page_samples import RUNS, hostile_run
from tests.support import records

# What the page of `staged.run` must show without scrolling.
FIRST = {
    "stragglers": "rank 5 on node2",
    "links": "NET/Socket/0 from node1 to node2",
    "metrics": "30.0 % below the reference",
}


# Focus stops in one row of cards differ in height by less than the height of a card.
CARD_PX = 150


@pytest.mark.parametrize("name", RUNS)
def test_page_opens_without_messages_or_requests(browse: Browse, name: str) -> None:
    """With all parts open there is no console message, no error, and no request except the file."""
    opened = browse(RUNS[name]())
    opened.open_all()
    opened.check_quiet()


def test_figures_match_the_record(browse: Browse) -> None:
    """Metrics, times and spreads on the page equal those of the record, to the last digit."""
    record = staged.run()
    opened = browse(record)
    opened.open_all()
    for phase in record["phases"]:
        part = f'section[data-phase="{phase["phase"]}"]'
        for name, metric in phase["metrics"].items():
            value = metric["value"]
            assert isinstance(value, float)
            row = f'{part} table[data-table="metrics"] tr[data-metric="{name}"] td:nth-child(2)'
            assert opened.figures(row) == [(show(value), json.dumps(value))]
        row = f'table[data-table="phases"] tr[data-phase="{phase["phase"]}"]'
        for field in ("queue_s", "run_s"):
            seconds = phase[field]
            wanted = [(f"{seconds:.1f}", json.dumps(seconds))]
            assert opened.figures(f'{row} td[data-field="{field}"]') == wanted
        counts = dict(opened.figures(f'{row} td[data-field="criteria"] span[data-result]'))
        results = [criterion["result"] for criterion in phase["criteria"].values()]
        assert {int(text) for text in counts} == {results.count(r) for r in set(results)}
        for rank in phase["ranks"]:
            spreads = [spread for spread in (rank["step_s"], rank["own_s"]) if spread]
            values = [json.dumps(value) for spread in spreads for value in spread.values()]
            exact = [json.dumps(rank["steps"]), json.dumps(rank["peak_memory_gib"]), *values]
            cells = f'{part} table[data-table="ranks"] tr[data-rank="{rank["rank"]}"] td.n'
            assert [value for _, value in opened.figures(cells)] == exact


Cells = list[tuple[str, str | None]]


def cell_of(value: float | str | None) -> tuple[str, str | None]:
    """The cell of a number in the record: its text, rounded, and its exact value."""
    if value is None:
        return "-", None
    if isinstance(value, int):  # a count
        return str(value), str(value)
    return (value, value) if isinstance(value, str) else (show(value), json.dumps(value))


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def times(phase: records.Record) -> Cells:
    """The cells of the phase's row in the table of the timeline."""
    moments = [phase["submitted"], phase["started"], phase["ended"]]
    seconds = [phase["queue_s"], phase["run_s"], phase["torchrun_s"], phase["overhead_s"]]
    return [
        *((moment(value), json.dumps(value)) for value in moments if value is not None),
        *((f"{value:.1f}", json.dumps(value)) for value in seconds if value is not None),
    ]


def past(record: records.Record, phase: records.Record) -> Cells:
    """The cells of the phase's past runs, then those of this run."""
    trend, metrics = phase["trend"], phase["metrics"]
    if trend is None:
        return []
    cells: Cells = []
    for at, begun in enumerate(trend["begun"]):
        flags = [trend["good"][at], trend["same"][at]]
        cells.append((moment(begun), None))
        cells += [("yes" if flag else "no", None) for flag in flags]
        cells += [cell_of(trend["metrics"][name][at]) for name in metrics]
    cells += [(moment(record["begun"]), None), ("", None), ("", None)]
    return cells + [cell_of(metric["value"]) for metric in metrics.values()]


def worst_first(group: records.Record) -> tuple[bool, float]:
    speed = group["bandwidth_gb_per_s"]
    return not group["unexpected"], math.inf if speed is None else speed


def test_tables_behind_charts_match_the_record(browse: Browse) -> None:
    """Timeline, loss, links of pairs of nodes and past runs: every cell, to the last digit."""
    record = staged.run()
    opened = browse(record)
    opened.open_all()
    wanted = [cell for phase in record["phases"] for cell in times(phase)]
    assert len(wanted) == 7 * len(record["phases"])
    assert opened.figures('table[data-table="timeline"] td') == wanted
    for phase in record["phases"]:
        part = f'section[data-phase="{phase["phase"]}"]'
        losses = [cell_of(value) for row in phase["loss"] for value in row]
        assert opened.figures(f'{part} table[data-table="loss"] td') == losses
        groups = phase["topology"]["groups"] if phase["topology"] else []
        pairs = [
            cell_of(value)
            for group in sorted(groups, key=worst_first)
            for value in (group["links"], group["unexpected"], group["bandwidth_gb_per_s"])
        ]
        assert opened.figures(f'{part} table[data-table="groups"] td.n') == pairs
        assert opened.figures(f'{part} table[data-table="trend"] td') == past(record, phase)


def test_verdict_and_sentence_are_complete(browse: Browse) -> None:
    """The sentence is that of the record, including the part that is only for screen readers."""
    record = staged.run()
    opened = browse(record)
    sentence = opened.page.locator('[data-field="sentence"]').text_content()
    assert sentence == record["sentence"]
    assert opened.page.locator("h1").text_content() == "UNFIT"
    assert opened.page.title().startswith("UNFIT: gilbreth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_first_screen_shows_what_is_wrong(browse: Browse, scheme: Any) -> None:
    """Slow rank, wrong transport and lost throughput are inside the first 1280 x 800 pixels, each
    with a link to its place on the page."""
    opened = browse(staged.run(), scheme=scheme)
    for kind, words in FIRST.items():
        card = opened.page.locator(f'.card[data-kind="{kind}"]')
        assert words in card.inner_text()
        box = card.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= LAPTOP[1]
        assert box["x"] >= 0 and box["x"] + box["width"] <= LAPTOP[0]
    for kind in FIRST:
        opened.page.locator(f'.card[data-kind="{kind}"] a').click()
        target = opened.page.locator(opened.ask("location.hash"))
        target.wait_for(timeout=PATIENCE_MS)
        seen = target.bounding_box()
        assert seen and -LAPTOP[1] < seen["y"] < LAPTOP[1]
        opened.ask("scrollTo(0, 0)")


def test_link_opens_closed_section(browse: Browse) -> None:
    """A link to a closed phase opens it and draws its charts."""
    opened = browse(staged.run())
    part = opened.page.locator('section[data-phase="mlp_1gpu"]')
    assert part.locator(":scope > details").get_attribute("open") is None
    opened.page.locator('nav a[href="#phase-mlp_1gpu"]').click()
    part.locator("figure[data-chart=loss] svg").wait_for(timeout=PATIENCE_MS)
    assert part.locator(":scope > details").get_attribute("open") is not None


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        # The phone shows the staged run in light colours; its other phases are sound.
        pytest.param("sound", marks=pytest.mark.slow),
        pytest.param("staged", marks=pytest.mark.slow),
        "without phases",
        "proof",
    ],
)
def test_axe_finds_nothing(browse: Browse, name: str, scheme: Any) -> None:
    """axe-core finds no violation with all parts open, in light and in dark colours."""
    opened = browse(RUNS[name](), scheme=scheme)
    opened.open_all()
    assert opened.find_violations() == []


@pytest.mark.slow
def test_axe_finds_nothing_on_a_phone(browse: Browse) -> None:
    """axe-core finds no violation where tables scroll in their boxes."""
    opened = browse(staged.run(), size=PHONE)
    opened.open_all()
    assert opened.find_violations() == []


def test_focus_follows_reading_order(browse: Browse) -> None:
    """The first stop is the skip link; each later stop is below or to the right of the previous
    one, and has a visible focus."""
    opened = browse(staged.run())
    opened.page.keyboard.press("Tab")
    assert opened.ask("document.activeElement.className") == "skip"
    tops: list[float] = []
    for _ in range(24):
        opened.page.keyboard.press("Tab")
        where = opened.ask(
            "(() => { const e = document.activeElement, b = e.getBoundingClientRect();"
            " return [b.top + scrollY, getComputedStyle(e).outlineStyle, e.tagName]; })()"
        )
        assert where[1] == "solid" and where[2] != "BODY"
        tops.append(where[0])
    for number, top in enumerate(tops):
        assert top > max(tops[: number + 1]) - CARD_PX, tops


@pytest.mark.parametrize("name", ["staged", "hostile", "proof"])
def test_phone_does_not_scroll_sideways(browse: Browse, name: str) -> None:
    """At 390 pixels nothing is wider than the screen, with all parts open."""
    opened = browse(RUNS[name](), size=PHONE)
    opened.open_all()
    assert opened.ask("document.documentElement.scrollWidth") == PHONE[0]
    opened.check_quiet()


def test_table_of_a_screen_does_not_scroll_sideways_on_a_phone(browse: Browse) -> None:
    """What is wrong with a node is below its name."""
    why = "gpu-ecc-errors: GPU 3 has had 5 uncorrectable errors since the driver was loaded"
    check = {"result": "failed", "text": why, "finding": "gpu-ecc-errors", "severity": "failure"}
    node = {"state": "failing", "group": "", "reason": why, "slurm_state": "idle", "job_id": "71"}
    nodes = [{"node": "gpu-n07", **node, "seconds": 0.5, "checks": {"gpus": check}}]
    screen = {"partition": "gpu", "minimum": 0.0, "limit_s": 60, "nodes": nodes}
    opened = browse(records.run(verdict="UNFIT", phases=[], screen=screen), size=PHONE)
    box = "document.querySelector('table[data-table=screen]').parentElement"
    assert opened.ask(f"{box}.scrollWidth <= {box}.clientWidth")
    assert opened.ask(f"{box}.querySelector('td.why').getBoundingClientRect().right") <= PHONE[0]


def test_hostile_text_does_nothing(browse: Browse) -> None:
    """Script tags and event handlers are shown as text and never run; bidi and control characters
    are replaced."""
    opened = browse(hostile_run())
    opened.open_all()
    opened.check_quiet()
    assert opened.page.locator("img, iframe, object, embed, form").count() == 0
    assert opened.page.locator("script").count() == 8
    assert opened.ask("document.querySelectorAll('[onerror], [onload], [onclick]').length") == 0
    text = opened.page.locator("main").text_content() or ""
    assert "<script>alert(1)</script>" in text and "\u202e" not in text and "\x1b" not in text
    assert opened.ask(
        "[...document.querySelectorAll('svg')].every(svg => !svg.innerHTML.includes('<img'))"
    )


@pytest.mark.parametrize("phases", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_512_ranks_open_in_under_two_seconds(browse: Browse, phases: int) -> None:
    """One phase or eight, each with 64 nodes, 512 ranks and 2,080 groups of links: parsed, laid out
    and drawn in under two seconds of the page's CPU time, which other load does not affect."""
    opened = browse(staged.ladder(phases) if phases > 1 else staged.large())
    opened.check_quiet()
    session = opened.page.context.new_cdp_session(opened.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    opened.page.reload()
    opened.settle()
    metrics = session.send("Performance.getMetrics")["metrics"]
    spent = {metric["name"]: metric["value"] for metric in metrics}
    assert 0.05 < spent["TaskDuration"] < 2
    assert opened.page.locator('section.phase figure[data-chart="steps"] svg').count() == 1
    card = opened.page.locator('.card[data-kind="stragglers"]')
    assert "rank 341 on node42" in card.inner_text()


@pytest.mark.slow
def test_distant_charts_are_drawn_later(browse: Browse) -> None:
    """A chart is drawn when the user scrolls near it; for printing, all are drawn."""
    opened = browse(staged.ladder())
    last = opened.page.locator('section[data-phase="phase_7"] figure[data-chart="steps"]')
    assert last.locator("svg").count() == 0
    opened.page.locator('nav a[href="#phase-phase_7"]').click()
    last.scroll_into_view_if_needed()
    last.locator("svg").wait_for(timeout=PATIENCE_MS)
    opened.ask("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator('figure[data-chart="steps"] svg').count() == 8
    opened.check_quiet()


def test_without_scripts_the_figures_are_there(browse: Browse) -> None:
    """The tables do not need scripts; without them, the empty boxes of charts are hidden."""
    record = staged.run()
    opened = browse(record, scripts=False)
    assert opened.page.locator("svg").count() == 0
    assert opened.page.locator(".plot").first.is_hidden()
    slow = opened.page.locator('tr[data-rank="5"][data-behind] td').first
    assert slow.text_content() == "node2"
    assert opened.page.locator('table[data-table="metrics"]').count() == 4


def test_partial_reports_say_so(browse: Browse) -> None:
    """The report of a killed run says so on the first screen."""
    record = records.run(partial="the controller was killed", verdict="INCONCLUSIVE")
    box = browse(record).page.locator(".verdict .partial")
    assert "the controller was killed" in box.inner_text()
    place = box.bounding_box()
    assert place and place["y"] + place["height"] < LAPTOP[1]
