"""Records are compared with the runs stored before them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_clustersmoke.evidence.fingerprint import COMPARED
from pytest_clustersmoke.evidence.history.history_database import HistoryUnusable
from pytest_clustersmoke.evidence.history.history_schema import Setup
from pytest_clustersmoke.evidence.run_record import PastRecord
from pytest_clustersmoke.report.highlights import find_highlights
from pytest_clustersmoke.report.summary import summary
from pytest_clustersmoke.report.terminal import write_summary
from tests.evidence.history.made import DAY_S, night, nights, of_night, with_versions
from tests.support.records import (
    BEGUN,
    Record,
    annotate,
    finding,
    metric,
    parsed,
    phase,
    proof,
    store_run,
)

FAILED = {"test_x": {"result": "failed", "text": ""}}
OK_PAST = {
    "status": "ok",
    "runs": 9,
    "median": 9.5,
    "mad": 0.1,
    "warn": 7.0,
    "fail": 6.6,
    "text": "",
}
FAILED_PAST, WARNED_PAST = {**OK_PAST, "status": "fail"}, {**OK_PAST, "status": "warn"}


def missing(reason: str, kind: str, phase: str = "zero1_4node") -> Record:
    return {"phase": phase, "kind": kind, "reason": reason}


def judged(record: Record, directory: Path, name: str = "steps_per_s") -> PastRecord:
    annotate(record, directory)
    past: PastRecord | None = record["phases"][0]["metrics"][name]["past"]
    assert past is not None
    return past


def test_setup_has_the_compared_columns() -> None:
    """The columns of a setup are hardware, shape and the versions that the fingerprint compares."""
    assert set(Setup._fields) == {"hardware", "shape", *COMPARED}


def test_run_compared_with_good_ones(tmp_path: Path) -> None:
    """A 30 % loss fails, an equal run is ok, each with its distance from the median."""
    nights(tmp_path, 20)
    good = judged(night(20, 9.45), tmp_path)
    assert (good["status"], good["runs"], good["median"]) == ("ok", 20, 9.5)
    bad = judged(night(20, 6.65), tmp_path)
    assert bad["status"] == "fail"
    assert "30.0 % below the median 9.500 of 20 good runs" in bad["text"]
    assert "no version changed since the last good run " in bad["text"]


def test_without_a_history_nothing_is_judged(tmp_path: Path) -> None:
    """The first run has not enough history, no trend and no changes."""
    record = night(0)
    past = judged(record, tmp_path / "none")
    assert (past["status"], past["runs"]) == ("not enough history", 0)
    assert record["phases"][0]["trend"] is None
    assert record["changes"] == []
    assert not tmp_path.joinpath("none").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "failed"},
        {"outcome": "cluster_failed"},
        {"criteria": FAILED},
        {"criteria": {"test_x": {"result": "known", "text": ""}}},
        {"all_criteria": False},
        {"metrics": {"steps_per_s": {**metric(9.5), "past": FAILED_PAST}}},
        {"metrics": {"steps_per_s": {**metric(9.5), "past": WARNED_PAST}}},
        {"metrics": {"steps_per_s": {**metric(9.5), "met": False}}},
        {"known": {"what": "x", "reason": "y", "until": "2027-01-01", "where": "f:1"}},
        {"fault": "rank_killed"},
        {"hardware": "8 nodes x 2 NVIDIA H100"},
        {"shape": "steps=60"},
        *({"versions": with_versions(**{name: "0.0"})} for name in COMPARED),
    ],
)
def test_only_good_runs_of_the_same_setup_count(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Runs that failed, were staged, or had other hardware, arguments or versions do not."""
    nights(tmp_path, 7)
    nights(tmp_path, 10, first=7, **changes)
    assert (judged(night(20), tmp_path)["status"], judged(night(20), tmp_path)["runs"]) == (
        "not enough history",
        7,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "nebius"},
        {"partial": "the controller was killed"},
        {"proof": proof()},
        {"missing": [missing("transports not measured", "transports")]},
        {"missing": [missing("no criterion was judged", "")]},
        {"missing": [missing("no criterion judged transports inside nodes", "transports")]},
    ],
)
def test_only_complete_runs_of_the_cluster_count(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Runs of another cluster, incomplete or unmeasured runs, and proofs do not."""
    nights(tmp_path, 7)
    for number in range(7, 17):
        store_run({**night(number), **changes}, tmp_path)
    assert judged(night(20), tmp_path)["runs"] == 7


@pytest.mark.parametrize(
    "entry",
    [
        missing("history not measured", "history"),
        missing("no criterion judged history", "history"),
        missing("references not measured", "references"),
        missing("transports not measured", "transports", phase="zero1"),
    ],
)
def test_good_runs_need_no_history_or_references(tmp_path: Path, entry: Record) -> None:
    """A required history or reference that does not exist yet does not spoil a run."""
    for number in range(8):
        store_run({**night(number), "missing": [entry]}, tmp_path)
    assert judged(night(8), tmp_path)["runs"] == 8


def test_warning_that_cannot_fail_leaves_a_run_good(tmp_path: Path) -> None:
    """Losses and times, and comparisons with other versions, only ever warn."""
    warned = {**metric(9.5), "past": {**WARNED_PAST, "fail": None}}
    nights(tmp_path, 8, metrics={"steps_per_s": warned})
    assert judged(night(8), tmp_path)["runs"] == 8


def test_run_that_was_not_judged_is_not_good(tmp_path: Path) -> None:
    """If the past could not be read, it is unknown whether the run is as good."""
    nights(tmp_path, 7)
    store_run(night(7), tmp_path, judged=False)
    assert judged(night(8), tmp_path)["runs"] == 7


def test_versions_irrelevant_to_speed_are_ignored(tmp_path: Path) -> None:
    """Runs with another python or transformers count as well."""
    nights(tmp_path, 8, versions=with_versions(python="3.10.1", transformers="4.40"))
    assert judged(night(8), tmp_path)["status"] == "ok"


def test_later_runs_are_not_the_past(tmp_path: Path) -> None:
    """A run that is reported again later is judged by the runs before it, not by itself."""
    nights(tmp_path, 20)
    again = night(10)
    again["run_id"] = "again"
    store_run(again, tmp_path)
    assert judged(again, tmp_path)["runs"] == 10


def test_change_of_versions_is_named_next_to_a_regression(tmp_path: Path) -> None:
    """The cost of an upgrade is a warning, compared with the runs before it."""
    nights(tmp_path, 12, versions=with_versions(nccl="2.19.3"))
    record = night(12, 6.65)
    past = judged(record, tmp_path)
    assert (past["status"], past["other_versions"], past["runs"]) == ("warn", True, 12)
    text = past["text"]
    assert "29.8 % below the median 9.475 of 12 good runs on other versions (spread" in text
    assert "not enough history: 0 good runs on this hardware and these versions" in text
    (changed,) = record["phases"][0]["changed"]
    assert changed == "nccl 2.19.3 -> 2.21.5"
    last_good = record["phases"][0]["last_good"]
    assert last_good.startswith("20261101-020000-")
    assert f"; changed: {changed} (last good run {last_good}); " in text


def test_cost_of_an_upgrade_is_shown(tmp_path: Path) -> None:
    """Terminal, first screen and Markdown show the warning, and what changed."""
    nights(tmp_path, 30)
    record = night(30, 6.65, versions=with_versions(driver="560.1"))
    text = judged(record, tmp_path)["text"]
    reporter = Mock()
    write_summary(reporter, parsed(record), [])
    lines = {call.args[0]: call.kwargs for call in reporter.write_line.call_args_list}
    assert lines[f"zero1_4node: {text}"] == {"yellow": True}
    (group,) = find_highlights(parsed(record), {"zero1_4node": "a"})
    assert (group.id, group.tone) == ("warnings", "warn")
    assert (
        "30.0 % below the median 9.500 steps/s of 30 runs on other versions" in group.items[0].title
    )
    assert "driver 550.54.15 -> 560.1" in group.items[0].text
    shown = summary(parsed(record)).replace("\\", "")
    assert "30.0 % below the median 9.500 of 30 good runs on other versions" in shown


def test_rollback_is_judged_and_named(tmp_path: Path) -> None:
    """Back on versions with enough history, a regression fails and names the change since."""
    nights(tmp_path, 12)
    nights(tmp_path, 3, first=12, versions=with_versions(driver="560.1"))
    record = night(15, 6.65)
    past = judged(record, tmp_path)
    assert (past["status"], past["runs"]) == ("fail", 12)
    assert "changed: driver 560.1 -> 550.54.15 (last good run " in past["text"]


def test_changed_arguments_are_named(tmp_path: Path) -> None:
    """If both shapes are JSON, the argument that differs is named."""
    nights(tmp_path, 1, shape='{"nodes": 4, "steps": 30}')
    record = night(1, shape='{"nodes": 4, "steps": 60}', hardware="4 x (2 x H200)")
    annotate(record, tmp_path)
    assert record["phases"][0]["changed"] == [
        "hardware 4 nodes x 2 NVIDIA H100 -> 4 x (2 x H200)",
        "args.steps 30 -> 60",
    ]


def test_changed_environment_is_named(tmp_path: Path) -> None:
    """If the digest of the variables differs, that is named, and no argument."""
    nights(tmp_path, 1, shape='{"nodes": 4, "args.nodes": 1}')
    record = night(1, shape='{"nodes": 4, "env": "1f2e3d4c", "args.nodes": 2}')
    annotate(record, tmp_path)
    assert record["phases"][0]["changed"] == [
        "args.nodes 1 -> 2",
        "env unset -> 1f2e3d4c",
    ]


def test_values_in_another_unit_are_not_compared(tmp_path: Path) -> None:
    """Values that were stored in another unit are not compared with."""
    nights(tmp_path, 8, metrics={"steps_per_s": metric(570.0, "steps/min")})
    assert judged(night(8), tmp_path)["runs"] == 0


def test_values_that_are_not_finite_are_kept_by_name(tmp_path: Path) -> None:
    """A NaN is stored and shown in the trend, fails, and never becomes part of a level."""
    nights(tmp_path, 8)
    store_run(night(8, metrics={"steps_per_s": {**metric(1.0), "value": "nan"}}), tmp_path)
    record = night(9, metrics={"steps_per_s": {**metric(1.0), "value": "-inf"}})
    past = judged(record, tmp_path)
    assert (past["status"], past["runs"]) == ("fail", 8)
    trend = record["phases"][0]["trend"]
    assert trend is not None
    assert trend["metrics"]["steps_per_s"][-1] == "nan"


def test_trend_has_the_newest_runs_oldest_first(tmp_path: Path) -> None:
    """Sixty runs of the phase, whatever their outcome."""
    nights(tmp_path, 65)
    nights(tmp_path, 1, first=65, criteria=FAILED)
    nights(tmp_path, 1, first=66, hardware="other", metrics={"peak_memory_gib": metric(9.0, "GiB")})
    record = night(67)
    annotate(record, tmp_path)
    trend = record["phases"][0]["trend"]
    assert trend is not None
    assert trend["begun"] == [BEGUN + day * DAY_S for day in range(7, 67)]
    assert trend["good"] == [True] * 58 + [False, True]
    assert trend["same"] == [True] * 59 + [False]
    assert set(trend["metrics"]) == {"steps_per_s", "peak_memory_gib"}
    assert trend["metrics"]["steps_per_s"][-1] is None
    assert trend["metrics"]["peak_memory_gib"] == [None] * 59 + [9.0]
    assert {len(values) for values in trend["metrics"].values()} == {60}


def test_screen_between_two_nights_hides_no_change(tmp_path: Path) -> None:
    """A night follows the night before."""
    store_run(of_night(0, phase("a")), tmp_path)
    store_run({**of_night(1, verdict="UNFIT"), "phases": []}, tmp_path)
    record = of_night(2, phase("a"), verdict="UNFIT")
    annotate(record, tmp_path)
    assert record["changes"] == ["verdict FIT -> UNFIT"]


def test_changes_since_the_previous_run(tmp_path: Path) -> None:
    """Verdict, phases, criteria, versions and nodes that changed, each in a few words."""
    held = [phase(name) for name in ("a", "b", "c", "d")]
    held[1] = phase("b", outcome="failed", findings=[finding()])
    held[3] = phase("d", criteria=FAILED)
    store_run(of_night(0, *held, verdict="UNFIT"), tmp_path)
    now = [phase(name, versions=with_versions(nccl="2.22")) for name in ("a", "b", "c", "d")]
    now[0]["outcome"] = "lost"
    now[2]["criteria"] = {"test_y": {"result": "failed", "text": ""}}
    now[2]["nodes"] = now[2]["nodes"][:3]
    now[3]["criteria"] = dict(FAILED)
    now[1]["nodes"][0]["node"] = "node9"
    now[3]["versions"]["torch"] = "2.6"
    record = of_night(1, *now, verdict="INCONCLUSIVE")
    annotate(record, tmp_path)
    assert record["changes"] == [
        "verdict UNFIT -> INCONCLUSIVE",
        "a is lost, was passed",
        "b passes again, was failed",
        "c: test_y newly failed",
        "nccl 2.21.5 -> 2.22",
        "torch 2.5.1+cu121 -> 2.6 (d)",
        "nodes: node9",
    ]


def test_phase_that_never_ran_has_no_changes(tmp_path: Path) -> None:
    """A phase that did not run, now or before, has no versions, hardware or nodes."""
    never = phase(outcome="never_ran", versions={}, hardware="", metrics={})
    never["nodes"] = []
    nights(tmp_path, 1)
    for number, (held, change) in enumerate(
        [(never, "never ran, was passed"), (phase(), "passes again, never ran")], 1
    ):
        record = of_night(number, held)
        annotate(record, tmp_path)
        assert record["changes"] == [f"zero1_4node {change}"]
        assert record["phases"][0]["changed"] == []
        store_run(record, tmp_path)


def test_nothing_changed(tmp_path: Path) -> None:
    """Two equal nights have no changes."""
    store_run(night(0), tmp_path)
    record = night(1)
    annotate(record, tmp_path)
    assert record["changes"] == []
    assert record["phases"][0]["changed"] == []


def test_partial_run_does_not_precede_a_full_one(tmp_path: Path) -> None:
    """The verdict is compared with that of the last run with the same selection."""
    store_run(of_night(0, verdict="UNFIT"), tmp_path)
    store_run(of_night(1, verdict="FIT", selection="multigpu"), tmp_path)
    record = of_night(2, verdict="FIT")
    annotate(record, tmp_path)
    assert record["changes"] == ["verdict UNFIT -> FIT"]


def test_long_selection_has_a_previous_run(tmp_path: Path) -> None:
    """A selection that is cut when stored is found again."""
    chosen = " or ".join(f"test_{number:04}" for number in range(200))
    store_run(of_night(0, verdict="UNFIT", selection=chosen), tmp_path)
    store_run(of_night(1, verdict="FIT", selection=f"{chosen} or test_x"), tmp_path)
    record = of_night(2, verdict="FIT", selection=chosen)
    annotate(record, tmp_path)
    assert record["changes"] == ["verdict UNFIT -> FIT"]


def test_warned_regression_does_not_become_normal(tmp_path: Path) -> None:
    """A regression that lasts many nights is still reported, even if no criterion fails on it."""
    nights(tmp_path, 12)
    for number in range(12, 42):
        record = night(number, 6.65)
        assert judged(record, tmp_path)["status"] == "fail"
        store_run(record, tmp_path)
    assert judged(night(42, 9.5), tmp_path)["runs"] == 12


def test_times_and_losses_warn_at_most(tmp_path: Path) -> None:
    """A loss ten times as high is a warning, and its run a good one."""
    nights(tmp_path, 8, metrics={"final_loss": metric(0.25, "1", False)})
    record = night(8, metrics={"final_loss": metric(2.5, "1", False)})
    assert judged(record, tmp_path, "final_loss")["status"] == "warn"
    assert record["phases"][0]["metrics"]["final_loss"]["past"]["fail"] is None


def test_judgement_of_the_criterion_is_kept(tmp_path: Path) -> None:
    """A metric that was already compared keeps that comparison."""
    nights(tmp_path, 12)
    record = night(12, 6.65)
    past = judged(record, tmp_path)
    past["text"] = "the criterion's own text"
    nights(tmp_path, 30, first=-60)
    assert judged(record, tmp_path) == past


def test_many_changes_are_cut(tmp_path: Path) -> None:
    """The first screen gets a dozen changes, and how many more there are."""
    names = [f"phase_{number:02}" for number in range(20)]
    store_run(of_night(0, *map(phase, names)), tmp_path)
    record = of_night(1, *(phase(name, outcome="failed") for name in names))
    annotate(record, tmp_path)
    assert len(record["changes"]) == 13
    assert record["changes"][-1] == "... and 8 more"


def test_staged_phases_are_left_alone(tmp_path: Path) -> None:
    """Proofs and phases with a staged fault are neither stored nor compared."""
    nights(tmp_path, 8)
    staged = {**night(8), "proof": proof()}
    before = copy.deepcopy(staged)
    annotate(staged, tmp_path)
    store_run(staged, tmp_path)
    assert staged == before
    staged = of_night(9, phase(fault="rank_slow"), phase("b"))
    annotate(staged, tmp_path)
    assert staged["phases"][0]["trend"] is None
    assert staged["phases"][0]["metrics"]["steps_per_s"]["past"] is None
    assert staged["phases"][1]["metrics"]["steps_per_s"]["past"] is not None
    store_run(staged, tmp_path)
    record = of_night(10, phase("zero1_4node"), phase("b"))
    annotate(record, tmp_path)
    lengths = [
        len((phase_record["trend"] or {"begun": []})["begun"]) for phase_record in record["phases"]
    ]
    assert lengths == [8, 1]


def test_text_of_jobs_is_stored_clean_and_short(tmp_path: Path) -> None:
    """Escapes are removed and length is bounded; only equal texts stay equal."""
    long, other = "\x1b[2J" + "x" * 100_000, "\x1b[2J" + "x" * 99_999 + "y"
    nights(tmp_path, 8, hardware=long)
    assert judged(night(8, hardware=long), tmp_path)["status"] == "ok"
    record = night(8, hardware=other)
    assert judged(record, tmp_path)["status"] == "not enough history"
    (words,) = record["phases"][0]["changed"]
    assert words.isprintable()
    assert len(words) < 1200


def test_unusable_database_leaves_the_record_alone(tmp_path: Path) -> None:
    """If the history is damaged, annotate raises HistoryUnusable and changes nothing."""
    tmp_path.joinpath("history.db").write_text("no database at all, this" * 100)
    record = night(0)
    before = copy.deepcopy(record)
    with pytest.raises(HistoryUnusable):
        annotate(record, tmp_path)
    assert record == before
