"""The record of a run is complete when it is made, and its verdict follows from it alone."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_clustersmoke.evidence.run_counts import CriterionRecord, KnownRecord, RunTally
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report.record_builder import FinishedRun, make_record
from pytest_clustersmoke.report.verdict import judge_record
from tests.support import records


def test_verdict_follows_from_the_written_record() -> None:
    """Judged again from report.json, every part of the verdict is the same."""
    tally = RunTally(phases_of_cluster=["a", "b", "c", "d"])
    tally.counts.require = ["transports"]
    tally.counts.selection = "a, b"
    tally.counts.undefined_phases, tally.counts.is_whole = ["d"], True
    for name in "ab":
        tally.phase(name).end("passed")
    tally.phase("c")
    known = KnownRecord(what="a: test_x", reason="RMA", until="2026-12-01", where="cluster.yaml:3")
    tally.phase("a").criteria["test_x"] = CriterionRecord.of("known", "slow", known)
    tally.phase("b").criteria["test_x"] = CriterionRecord.of("passed", judged="loss,memory")
    tally.phase("b").unmeasured = {"replay"}
    tally.phase("b").counts.sides = ["transports inside nodes"]
    tally.phase("b").counts.defined = ["test_x", "test_y"]
    tally.phase("b").counts.selected = ["test_x", "test_y"]
    record = records.judged(tally)
    written = RunRecord.model_validate(json.loads(json.dumps(record.as_json())))
    verdict = judge_record(written)
    assert len(record.missing) == 4 and len(record.known) == 1
    assert (verdict.name, verdict.sentence) == (record.verdict, record.sentence)
    assert (verdict.missing, verdict.known) == (record.missing, record.known)
    assert (verdict.scope, verdict.partial) == (record.selection, record.partial)


def test_record_has_its_past_when_it_is_made(tmp_path: Path) -> None:
    """Every view, junit.xml among them, gets the record with what changed since the last run."""
    records.store_run(records.run(begun=records.BEGUN - 86_400), tmp_path)
    about = records.run()
    run = FinishedRun(RunDir(tmp_path / "runs"), tmp_path / about["run_id"], about, RunTally())
    assert make_record(run).changes == ["verdict FIT -> INCONCLUSIVE"]
    assert run.unread == []
