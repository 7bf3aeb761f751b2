"""A printed run is one sheet of paper; what the reader opens is printed too. Times of a run are in
its own zone and in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pytest_clustersmoke.report import page_sheet
from pytest_clustersmoke.text import format_time
from tests.report import staged
from tests.report.browsing import Browse, Opened
from tests.report.page_samples import RUNS, page
from tests.support import records

# A sheet says as much of a phase with one rank; the rest of the page takes long to lay out.
SMALLEST: dict[str, Any] = {"nodes": 1, "ranks_per_node": 1, "loss": []}


def many_phases() -> records.Record:
    """60 phases of a sweep, the last of which failed."""
    names = [f"ddp_2node-learning_rate-0.{number:04}" for number in range(60)]
    phases = [records.phase(name, **SMALLEST) for name in names]
    phases[-1] |= {"outcome": "failed", "reason": "killed", "findings": [records.finding()]}
    sentence = "UNFIT: 1 of 60 phases failed (ddp_2node-learning_rate-0.0059: failed)"
    return records.run(*phases, verdict="UNFIT", sentence=sentence, request=records.REQUEST)


def killed_run() -> records.Record:
    """100 phases, of which a killed run judged none."""
    names = [f"ddp_2node-{number:03}" for number in range(100)]
    phases = [records.phase(name, criteria={}, **SMALLEST) for name in names]
    sentence = "INCONCLUSIVE: 0 of 100 phases finished"
    return records.run(
        *phases,
        verdict="INCONCLUSIVE",
        sentence=sentence,
        partial=f"no result for {', '.join(names)}",
    )


def test_step_of_two_commands_is_not_cut() -> None:
    """It says what to do on several lines."""
    phase = records.phase("allreduce_multinode", last_good="20261118-1")
    red = {"result": "failed", "text": "t", "judged": ["references", "stragglers"]}
    phase["criteria"]["test_rate"] = red
    text = page(records.run(phase, verdict="UNFIT", backend="slurm")).replace("<wbr>", "")
    sheet = text.partition('class="sheet"')[2].partition("</section>")[0]
    step = "<code>references.allreduce_multinode</code> of cluster gilbreth in cluster.yaml</li>"
    assert step in sheet


def count_sheets(opened: Opened, paper: str) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", opened.page.pdf(format=paper)))


@pytest.mark.parametrize(
    "make",
    [
        *(records.run, staged.run),
        pytest.param(many_phases, marks=pytest.mark.slow),
        killed_run,
        pytest.param(staged.ladder, marks=pytest.mark.slow),
        *(RUNS[name] for name in ("proof", "hostile")),
    ],
    ids=["FIT", "UNFIT", "60 phases", "killed", "512 ranks", "proof", "hostile"],
)
def test_printed_run_is_one_sheet(browse: Browse, make: Callable[[], records.Record]) -> None:
    """Of a run that is fit, of one that is not, and of many phases: Chromium prints one page."""
    opened = browse(make())
    assert [count_sheets(opened, paper) for paper in ("A4", "Letter")] == [1, 1]


def test_sheet_says_who_ran_what_and_what_is_wrong(browse: Browse) -> None:
    """Verdict, times, user, host, command, versions, causes, what to do, and every phase, on white
    paper and without navigation; the screen shows no sheet."""
    opened = browse(staged.run(request=records.REQUEST), scheme="dark")
    sheet = opened.page.locator(".sheet")
    assert sheet.is_hidden()
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.locator("nav").is_hidden()
    assert opened.page.locator("h1").inner_text() == "UNFIT"
    text = re.sub(r"\s+", " ", sheet.inner_text())
    for words in (
        "Began 2026-11-18 06:06:40 UTC-05:00 (11:06:40 UTC)",
        "Took 0:01:30 User anna Host login1 Nodes 4: node0, node1, node2, node3",
        f"Command {records.REQUEST['command']}",
        "Versions pytest-clustersmoke 0.1.0, python 3.11.7, torch 2.5.1+cu121",
        "zero1_2gpu: failed job: rank 1 was killed by signal 9: failed on node0",
        "zero1_4node: slow rank: rank 5 on node2",
        "zero1_2gpu: look into the kernel's log of node1",
        "zero1_4node 3 failed 4",
        "allreduce_multinode passed 4",
    ):
        assert words in text
    opened.check_quiet()


def test_rows_that_do_not_fit_are_counted_and_are_no_worse(browse: Browse) -> None:
    """The phase that failed has a row, although it is the last one."""
    opened = browse(many_phases())
    opened.page.emulate_media(media="print")
    rows = opened.page.locator(".sheet tbody tr")
    assert "0.0059 failed" in re.sub(r"\s+", " ", rows.last.inner_text())
    left = opened.page.locator(".sheet > p").inner_text()
    assert left == f"and {60 - rows.count()} more, none of them worse"


def sheet_of(record: records.Record) -> str:
    html = page(record)
    return html[html.index('class="sheet"') : html.index('id="stands-out"')]


def test_table_without_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a row fits: the sheet says so in place of the table."""
    monkeypatch.setattr(page_sheet, "LINES", 0.0)
    sheet = sheet_of(many_phases())
    assert "<table" not in sheet and "There is no room for the table: 60 rows." in sheet


def test_cause_of_a_proof_or_a_screen_is_said_once() -> None:
    """Although a card of the page says it too."""
    reason = "gpu-ecc-errors: GPU 3 has had 5 errors"
    node: dict[str, Any] = {
        "node": "x1",
        "state": "failing",
        "group": "",
        "reason": reason,
        "slurm_state": "idle",
    }
    node |= {"job_id": "7", "seconds": 0.5, "checks": {}}
    screen = {"partition": "gpu", "minimum": 0.0, "limit_s": 60, "nodes": [node]}
    causes: dict[str, Any] = {
        "failed": [f"x1: {reason}"],
        "verdict": "UNFIT",
        "phases": [],
        "phases_chosen": [],
    }
    screened = sheet_of(records.run(**causes, screen=screen))
    assert (
        screened.count(f"<li>x1: {reason}</li>")
        == 1
        == screened[: screened.index("<table")].count(reason)
    )
    proven = sheet_of(RUNS["proof"]())
    assert proven[: proven.index("<table")].count("slow_rank") == 1


def test_phase_that_is_opened_is_printed(browse: Browse) -> None:
    """It follows the sheet with its charts; what is open from the start, because it failed, does
    not, and closed sections stay closed."""
    opened = browse(staged.run())
    assert opened.page.locator('section[data-phase="zero1_4node"] > details[open]').count() == 1
    part = opened.page.locator('section[data-phase="mlp_1gpu"]')
    part.locator(":scope > details > summary").click()
    opened.settle()
    assert count_sheets(opened, "A4") > 1
    opened.page.emulate_media(media="print")
    assert part.locator("figure[data-chart=loss] svg").is_visible()
    assert part.locator('table[data-table="loss"]').is_hidden()
    for other in ("zero1_4node", "ddp_2gpu"):
        assert opened.page.locator(f'section[data-phase="{other}"]').is_hidden()


def test_all_of_the_page_is_printed_on_demand(browse: Browse) -> None:
    """With the box in the navigation: everything that the screen shows; what is closed there stays
    closed. It needs no script."""
    opened = browse(staged.run(), scripts=False)
    opened.page.check("#print-all")
    opened.page.emulate_media(media="print")
    for shown in ("#findings", "#nodes", 'section[data-phase="zero1_4node"] .metrics'):
        assert opened.page.locator(shown).first.is_visible(), shown
    assert opened.page.locator('section[data-phase="ddp_2gpu"] .body').is_hidden()


@pytest.mark.parametrize(
    ("offset_s", "words"),
    [
        (None, "2026-11-18 11:06:40 UTC"),
        (0, "2026-11-18 11:06:40 UTC"),
        (19800, "2026-11-18 16:36:40 UTC+05:30 (11:06:40 UTC)"),
        (50400, "2026-11-19 01:06:40 UTC+14:00 (2026-11-18 11:06:40 UTC)"),
        (10**6, "2026-11-18 11:06:40 UTC"),
    ],
)
def test_times_are_local_with_their_zone(offset_s: int | None, words: str) -> None:
    """Beside UTC; in UTC alone where that is the local time, or where it is unknown."""
    assert format_time(records.BEGUN, offset_s) == words
    assert format_time(None, offset_s) == "-"


def test_every_time_of_the_run_is_in_its_zone() -> None:
    """Begin, attachments, the times of each phase and the footer."""
    phase = records.phase()
    record = records.run(phase, request=records.REQUEST, attached=[records.BEGUN + 60])
    html = page(record)
    for seconds in (
        *(record["begun"], record["written"], record["attached"][0]),
        *(phase["submitted"], phase["started"], phase["ended"]),
    ):
        assert f">{format_time(seconds, -18000)}<" in html


def test_run_whose_end_is_unknown_has_no_duration() -> None:
    """A later command wrote its report."""
    cut: Any = {"counts": {"cut_off": "its controller was killed"}, "partial": "killed"}
    html = page(records.run(request=records.REQUEST, **cut))
    assert "<dt>Reported</dt>" in html and "<dt>Took</dt>" not in html
