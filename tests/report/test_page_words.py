"""The sentences of index.html: they claim only what was measured, once, in plain words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_record import HardwareRecord
from pytest_clustersmoke.report.page_view import bounds_words, hardware_words
from tests.report import staged
from tests.report.browsing import PHONE, Browse
from tests.report.page_samples import page
from tests.support import records


def section(html: str, name: str) -> str:
    """The text of a part of the page, without its tags."""
    part = html[html.index(f'id="{name}"') :]
    return re.sub(r"<[^>]*>", "", part[: part.index("</section>")])


def red(result: Any, **changes: Any) -> records.Record:
    """A job that passed, with a criterion of this result."""
    phase = records.phase(reason="every node ended well", **changes)
    phase["criteria"]["test_loss"] = {"result": result, "text": "it rose"}
    return phase


def test_legend_of_the_topology_has_only_what_is_drawn() -> None:
    """What no picture of the phase shows is not explained below it."""
    phase = records.phase("small")
    legend = section(page(records.run(phase)), "phase-small-topology")
    assert "link as expected" in legend
    marks = ("slow rank", "rank not done", "rank named as a cause", "rank that wrote nothing")
    assert [mark for mark in marks if mark in legend] == []
    phase["topology"] |= {"links": [], "groups": [], "note": "gloo does not log its connections"}
    phase["ranks"][0] |= {"behind": True}
    phase["ranks"][1] |= {"done": False}
    phase["progress"] = staged.progress([staged.lane([0], "unfinished", "in train")])
    legend = section(page(records.run(phase)), "phase-small-topology")
    assert [mark for mark in marks if mark in legend] == ["slow rank", "rank not done"]
    assert "link as expected" not in legend and "unexpected link" not in legend
    assert "between two nodes" not in legend
    lanes = [staged.lane([0], "named", "it died"), staged.lane([1], "silent", "wrote nothing")]
    phase["progress"] = staged.progress(lanes)
    legend = section(page(records.run(phase)), "phase-small-topology")
    assert [mark for mark in marks if mark in legend] == list(marks)


def test_fit_page_claims_no_more_than_was_measured() -> None:
    """It names the kinds that were not measured, with the number of phases that lack each."""
    first = records.phase("one", not_measured=["history", "references"])
    other = records.phase("two", not_measured=["references", "transports"])
    missing = {"phase": "two", "kind": "transports", "reason": "transports not measured"}
    html = page(records.run(first, other, missing=[missing]))
    assert "Nothing in what was measured: no failed job" in html
    words = "Not required, and not measured in every phase: history (1 of 2 phases), references."
    assert words in section(html, "unmeasured")


@pytest.mark.parametrize(
    ("selection", "words"), [("", "requires was"), ("mlp", "requires of the selection was")]
)
def test_partial_selection_claims_only_the_selection(selection: str, words: str) -> None:
    """With a selection, the sentence is about the selection."""
    part = section(page(records.run(not_measured=[], selection=selection)), "unmeasured")
    assert f"Everything this cluster {words} measured." in part


@pytest.mark.parametrize(
    ("phase", "words", "tone"),
    [
        (records.phase(), "passed", "good"),
        (red("failed"), "1 failed", "bad"),
        (red("known"), "passed, 1 known", "warn"),
        (records.phase(outcome="failed"), "failed", "bad"),
        (records.phase(outcome="never_ran"), "not measured (never ran)", "warn"),
    ],
)
def test_phase_is_as_green_as_its_criteria(phase: records.Record, words: str, tone: str) -> None:
    """Both badges and the bar of the timeline show the worst of the job and its criteria."""
    html = page(records.run(phase))
    pill = re.escape(f'<span class="badge {tone}">{words}</span>')
    assert re.search(f'<td data-field="outcome">{pill}', html)
    assert re.search(f"<summary><h2 [^>]*>zero1_4node</h2> {pill}", html)
    assert f'data-tone="{tone}"' in html
    assert '<th scope="col">Verdict</th>' in html and "Outcome" not in html


def test_reason_is_attributed_to_the_job() -> None:
    """The job passed, but the phase has a red criterion: the reason is that of the job."""
    assert "<strong>Job passed:</strong> every node ended well" in page(records.run(red("failed")))


def test_first_run_says_there_is_no_earlier_run() -> None:
    """If there are earlier runs and nothing changed, the page says that instead."""
    assert "There is no earlier run of these phases." in page(records.run())
    phase = records.phase()
    phase["trend"] = staged.trend(phase)
    assert "No change was recorded." in page(records.run(phase))


def test_scope_is_not_repeated_below_the_sentence() -> None:
    """The number of phases and the selection are shown below the sentence only if it lacks them."""
    chosen: dict[str, Any] = {"phases_chosen": ["a"], "phases_of_cluster": ["a", "b"]}
    chosen["selection"] = "mlp"
    html = page(
        records.run(sentence="FIT: 1 of 1 phases passed; selected: mlp (1 of 2 phases)", **chosen)
    )
    assert html.count("1 of 2 phases") == 1 and "(mlp)" not in html
    assert " · 1 of 2 phases: mlp</p>" in page(records.run(sentence="NOT PROVEN", **chosen))


def test_last_good_run_is_shown_once() -> None:
    """The run's name is shown once for all changes, and not in the highlight; what to do next has
    the command that compares with it."""
    phase = staged.slow_phase()
    phase["changed"] = ["args.nccl none -> socket", "args.rate 10.0 -> 7.0"]
    phase["last_good"] = "20261122-034602-3ae2ef"
    html = page(records.run(phase, verdict="UNFIT"))
    text = "args.nccl none -&gt; socket{} args.rate 10.0 -&gt; 7.0"
    assert f"Since the last good run: {text.format(',')}" in html
    assert f"since the last good run 20261122-034602-3ae2ef: {text.format(';')}" in html
    without_commands = re.sub(r"clustersmoke compare [^<;]+", "", html)
    assert without_commands.count("20261122-034602-3ae2ef") == 1


def test_long_names_break_after_an_underscore() -> None:
    """In the lists of changes, known failures and missing measurements too; two of these are on the
    printed sheet as well."""
    name = "test_transports_between_nodes_are_those_expected"
    known = {"what": f"a: {name}", "reason": "r", "until": "2026-12-01", "where": "c.yaml:7"}
    lists: Any = {"changes": [f"{name} failed"], "known": [known], "not_measured": [f"a: {name}"]}
    html = page(records.run(**lists))
    assert html.count(name.replace("_", "_<wbr>")) == 5


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (900, None, "at least 900"),
        (None, 9, "at most 9"),
        (1, 2, "1 to 2"),
        (None, None, "any value"),
    ],
)
def test_bounds_in_words(low: Any, high: Any, words: str) -> None:
    """One bound, both bounds, or none."""
    text = "".join(
        f"{word}{'' if bound is None else bound}" for word, bound in bounds_words(low, high)
    )
    assert text == words


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("NVIDIA H100", "2 \N{MULTIPLICATION SIGN} NVIDIA H100 per node"),
        ("any", "2 devices per node"),
    ],
)
def test_hardware_without_a_model_is_called_devices(gpu: str, words: str) -> None:
    """`gpu: any` is not the name of a model."""
    held = HardwareRecord(gpu=gpu, device="auto", gpus_per_node=2, interconnect="")
    assert hardware_words(held) == words
    joined = held.model_copy(update={"interconnect": "InfiniBand"})
    assert hardware_words(joined) == f"{words}, InfiniBand"


def test_plain_number_has_no_unit() -> None:
    """The unit `1` is not shown: a loss is 0.25, not "0.25 1"."""
    html = page(records.run())
    row = html[html.index('<tr data-metric="final_loss"') :]
    assert "<td></td>" in row[: row.index("</tr>")]


def test_metrics_prom_and_run_json_are_linked() -> None:
    """The page links these files of the report too."""
    html = page(records.run())
    assert 'href="metrics.prom"' in html and 'href="run.json"' in html


@pytest.mark.parametrize("table", ["metrics", "criteria"])
def test_phone_tables_need_no_sideways_scrolling(browse: Browse, table: str) -> None:
    """Tables fit the width, and rows with short text are low."""
    opened = browse(staged.run(), size=PHONE)
    opened.open_all()
    part = opened.page.locator(f'section[data-phase="zero1_4node"] table[data-table="{table}"]')
    assert part.evaluate("e => e.parentElement.scrollWidth <= e.parentElement.clientWidth")
    rows = part.locator("tbody tr")
    plain = rows.filter(has_text="final_loss" if table == "metrics" else "are_done").bounding_box()
    assert plain and plain["height"] < 60
    text = rows.first.inner_text()
    assert ("30.7 % below the median 9.595" in text) == (table == "metrics")


def test_first_run_says_once_that_there_is_no_past() -> None:
    """Not beside every metric; with earlier runs each metric says how it compares."""
    phase = records.phase()
    for metric in phase["metrics"].values():
        metric["past"] = {
            **dict.fromkeys(("median", "mad", "warn", "fail")),
            "status": "not enough history",
            "runs": 0,
            "text": "m is 1: not enough history: 0 good runs",
        }
    html = page(records.run(phase))
    assert html.count("not enough history") == 0
    assert html.count("There is no earlier run of these phases.") == 1
    phase["trend"] = staged.trend(phase)
    assert page(records.run(phase)).count(">not enough history<") == len(phase["metrics"])
