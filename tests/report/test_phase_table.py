"""Every view gives a phase one verdict, and the terminal ends with the cause of each failure."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.report.phase_table import compare_with_usual, judge_phase
from pytest_clustersmoke.report.summary import summary
from tests.report.page_samples import page, printed
from tests.support import records
from tests.support.harness import Suite

TWICE = [records.attempt(1, "cluster_failed"), records.attempt(2)]
KNOWN = {"what": "w", "reason": "fan", "until": "2099-01-01", "where": "cluster.yaml:1"}
BAD = {"test_rate": {"result": "failed", "text": "9.5 is below 10\nby far"}}
PAST = {
    "status": "fail",
    "runs": 9,
    "median": 100.0,
    "mad": 1.0,
    "warn": 95.0,
    "fail": 90.0,
    "text": "",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "passed"),
        ({"criteria": BAD}, "1 failed"),
        ({"criteria": {**BAD, "test_b": BAD["test_rate"]}}, "2 failed"),
        ({"criteria": {"test_a": {"result": "known", "text": ""}}}, "passed, 1 known"),
        ({"outcome": "failed"}, "failed"),
        ({"outcome": "cluster_failed"}, "cluster failed"),
        ({"outcome": "failed", "known": KNOWN}, "failed, known"),
        ({"outcome": "never_ran"}, "not measured (never ran)"),
        ({"attempts": TWICE}, "passed on attempt 2"),
    ],
)
def test_phase_has_one_verdict_in_all_views(changes: dict[str, Any], words: str) -> None:
    """Terminal, GitHub's summary and page."""
    record = records.run(records.phase("wide", **changes))
    row = next(line for line in printed(record) if line.startswith("wide "))
    assert row.removeprefix("wide").strip().startswith(f"{words}  ")
    shown = summary(records.parsed(record)).replace("\\", "")
    assert f"| wide | {words} |" in shown
    assert f">{words}</span>" in page(record)


def test_phase_that_lacks_something_required_is_not_measured() -> None:
    """Although its job passed, and no criterion failed."""
    missing = [{"phase": "wide", "kind": "gradients", "reason": "gradients not measured"}]
    record = records.parsed(records.run(records.phase("wide"), missing=missing))
    verdict = judge_phase(record.phases[0], record.missing)
    assert (verdict.words, verdict.tone) == ("not measured (gradients)", "warn")


PROVEN = {"seed": "abc", "drawn": [1, 6, 10], "proven": 3, "seconds": 0.5, "share": 0.0125}


def test_terminal_and_page_say_which_steps_were_proven() -> None:
    """With the time that it took; a phase without a proof has no such line."""
    record = records.run(records.phase(proven_steps=PROVEN), records.phase("other"))
    words = "3 steps proven (1, 6, 10) in 0.5 s, 1 % of the training"
    name = record["phases"][0]["phase"]
    assert [line for line in printed(record) if " proven (" in line] == [f"{name}: {words}"]
    assert page(record).count(f"{words}. They are in no rate.") == 1


def test_rate_is_compared_with_the_past() -> None:
    """The phase's rate, else its steps; without a past there is nothing to compare with."""
    rates = {name: records.metric(75.0) for name in ("steps_per_s", "samples_per_s")}
    rates["steps_per_s"]["past"] = {**PAST, "median": 50.0}
    of_steps = records.parsed(records.run(records.phase(metrics=rates))).phases[0]
    assert compare_with_usual(of_steps) == "+50 %"
    rates["samples_per_s"]["past"] = PAST
    slow = records.run(records.phase("wide", metrics=rates))
    assert compare_with_usual(records.parsed(slow).phases[0]) == "-25 %"
    assert "-25 %" in printed(slow)[1] and "-25 %" in page(slow)
    unknown = records.parsed(records.run(records.phase(metrics={}))).phases[0]
    assert compare_with_usual(unknown) == "-"
    rates["samples_per_s"]["past"] = {**PAST, "other_versions": True}
    others = records.parsed(records.run(records.phase(metrics=rates))).phases[0]
    assert compare_with_usual(others) == "-"


def test_terminal_ends_with_the_cause_of_each_failed_phase() -> None:
    """One line each, above the verdict: of a job its first cause, with host and rank."""
    found = records.finding(cause="it was killed", hosts=["n3"], ranks=[5])
    phases = [
        records.phase("good"),
        records.phase("dead", outcome="failed", findings=[found]),
        records.phase("slow", criteria=BAD),
        records.phase("held", outcome="failed", known=KNOWN),
        records.phase("late", outcome="never_ran", reason="queue: too long"),
    ]
    assert printed(records.run(*phases))[-5:-1] == [
        "report: here",
        "dead: failed: it was killed (n3, rank 5)",
        "slow: 1 failed: test_rate: 9.5 is below 10",
        "late: not measured (never ran): queue: too long",
    ]


def test_red_criterion_is_not_a_phase_that_passed(suite: Suite) -> None:
    """The table and the last lines of a run."""
    suite.phase(body="def test_rate(self, phase):\n    assert False, 'too slow'")
    result = suite.run()
    result.stdout.fnmatch_lines(
        ["small *1 failed *", "report: *", "small: 1 failed: test_rate: *too slow*", "UNFIT: *"]
    )


def test_skipped_criteria_are_counted_in_one_line() -> None:
    """By kind, with the option that shows each; those of a failed job by themselves. Without one
    there is no line."""
    few = "not measured (history): m is 1: not enough history: 0 good runs"
    texts = [few] * 3 + ["not measured (references): no reference"] * 2 + ["because"]
    criteria = {
        f"test_{number}": {"result": "skipped", "text": text} for number, text in enumerate(texts)
    }
    failed = {name: {"result": "skipped", "text": "job failed, see x::job"} for name in criteria}
    phases = (
        records.phase("a", criteria=criteria),
        records.phase("b", outcome="failed", criteria=failed),
    )
    assert [line for line in printed(records.run(*phases)) if line.startswith("skipped")] == [
        "skipped: 12 criteria: job failed 6, history 3 (not enough history), references 2, "
        "others 1; -rs says why"
    ]
    assert not any(
        line.startswith("skipped") for line in printed(records.run(records.phase(criteria={})))
    )


def test_inconclusive_run_says_what_to_do_next_above_the_verdict() -> None:
    """The verdict stays the last line."""
    lost = records.phase("a", outcome="lost", counts={"has_ended": True})
    changes = {"verdict": "INCONCLUSIVE", "sentence": "INCONCLUSIVE: 0 of 1 phases finished"}
    lines = printed(records.run(lost, **changes))
    assert lines[-2:] == [
        "next: run it again: `pytest --cluster gilbreth -k 'a'`",
        "INCONCLUSIVE: 0 of 1 phases finished",
    ]
    assert not any(line.startswith("next") for line in printed(records.run()))


def test_unfit_run_says_what_to_do_next_above_the_verdict() -> None:
    """After the causes; of many steps eight, and how many more there are."""
    phases = [records.phase(f"p{number}") for number in range(12)]
    for phase in phases:
        phase["criteria"]["test_rate"] = {"result": "failed", "text": "t", "judged": ["references"]}
    lines = printed(records.run(*phases, verdict="UNFIT", sentence="UNFIT: 12 failed"))
    *steps, more, verdict = lines[-10:]
    names = [step.partition(": ")[2].partition(":")[0] for step in steps]
    assert names == [f"p{number}" for number in range(8)]
    assert "4 more in `clustersmoke summary --json`" in more and verdict == "UNFIT: 12 failed"
