"""Runs whose controller was killed: the next command that finds one reports what is known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir, write_json
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.report import recovery
from pytest_clustersmoke.report.unreported_runs import find_unreported
from pytest_clustersmoke.report.verdict import judge_record
from tests.report.killed_run import finish_job, killed
from tests.support.harness import Suite


def report(suite: Suite, run: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((suite.reports / run / "report.json").read_text())
    return record


def test_next_run_reports_a_killed_run(suite: Suite) -> None:
    """Not while its job runs. A job that ended later has its own outcome, and criteria that were
    not judged have none: the run is partial, and reported once."""
    run = killed(suite)
    assert not (suite.reports / run / "report.json").exists()
    assert f"run {run} has 1 job left (" in suite.run_apart("-k", "first").stdout.str()
    assert not (suite.reports / run / "report.json").exists()
    finish_job(suite, run)
    result = suite.run_apart("-k", "first")
    result.stdout.fnmatch_lines([f"*run {run}: its controller was killed; its report is written*"])
    record = report(suite, run)
    assert record["verdict"] == "INCONCLUSIVE" and "its controller was killed" in record["partial"]
    judged = judge_record(RunRecord.model_validate(record))
    assert (judged.sentence, judged.partial) == (record["sentence"], record["partial"])
    first, second = record["phases"]
    assert first["outcome"] == "passed"
    assert first["criteria"]["test_all_done"] == {"result": "passed", "text": ""}
    assert first["metrics"]["steps_per_s"]["value"] > 0
    assert second["outcome"] == "passed" and second["job_id"] and second["criteria"] == {}
    assert suite.report.resolve().name != run
    again = suite.run_apart("-k", "first")
    assert run not in again.stdout.str()
    assert report(suite, run) == record


def history(suite: Suite) -> subprocess.CompletedProcess[str]:
    """`clustersmoke history` as a user runs it beside the reports."""
    words = [
        sys.executable,
        "-m",
        "pytest_clustersmoke.cli",
        "history",
        "--report-dir",
        "reports",
    ]
    return subprocess.run(words, cwd=suite.path, capture_output=True, text=True, check=True)


def test_history_command_reports_a_killed_run(suite: Suite) -> None:
    """`clustersmoke history` reports it on standard error, beside its table."""
    run = killed(suite)
    finish_job(suite, run)
    done = history(suite)
    assert f"run {run}: its controller was killed" in done.stderr
    assert "first" in done.stdout and report(suite, run)["interrupted"] is True


DIES = """\
import os
import signal
import pytest_clustersmoke.report.publication as publication
def die(*arguments):
    if not os.path.exists("survive"):
        os.kill(os.getpid(), signal.SIGKILL)
    return page(*arguments)
page, publication.page = publication.page, die
"""


def test_run_killed_after_its_record_is_completed(suite: Suite) -> None:
    """The verdict stays; page, evidence and history are completed once."""
    suite.path.joinpath("conftest.py").write_text(DIES)
    suite.phase()
    suite.run_apart()
    (run,) = (path.name for path in suite.runs())
    record = report(suite, run)
    assert record["verdict"] == "FIT" and not (suite.reports / run / "index.html").exists()
    (suite.path / "survive").touch()
    done, again = history(suite), history(suite)
    assert f"run {run}: killed before its report was complete" in done.stderr
    assert "small" in done.stdout and run not in again.stderr
    assert (suite.reports / run / "index.html").exists()
    assert (suite.reports / run / "journal.jsonl").exists()
    assert report(suite, run)["verdict"] == "FIT"


def test_rerun_that_had_ended_was_not_left_behind(tmp_path: Path) -> None:
    """Of a phase's reruns, only the one that still ran when the controller was killed is named."""
    run = RunDir(tmp_path)
    write_json(run.phase("small").result, {"outcome": "passed"})
    journal = EventWriter(run.journal)
    for number, name in enumerate(("small", "small.confirm1", "small.confirm2")):
        journal.write("submitted", phase=name, job_id=f"job{number}")
        if number < 2:
            journal.write("ended", phase=name, job_id=f"job{number}", outcome="passed")
    journal.close()
    tally = recovery._count_journal(run, {"phases_chosen": ["small"]})
    assert tally.counts.cut_off == "its controller was killed; job job2 was not cancelled"


@pytest.mark.parametrize("kind", ["", "proof", "screen"])
def test_killed_proof_or_screen_is_no_run_of_phases(tmp_path: Path, kind: str) -> None:
    """It is run again; nothing is reported of it, since it says nothing of any phase."""
    name = "20261101-020000-00000a"
    run, target = RunDir(tmp_path / "runs" / name), RunDir(tmp_path / "reports" / name)
    for folder in (run, target):
        folder.root.mkdir(parents=True)
    write_json(target.run, {"evidence": str(run.root)})
    write_json(run.run, {"run_id": name, **({kind: "gpu"} if kind else {})})
    found = [about["run_id"] for _, _, about in find_unreported(tmp_path / "reports")]
    assert found == ([] if kind else [name])


def test_running_run_is_left_alone(suite: Suite) -> None:
    """A second run does not report a run that is still running."""
    suite.phase(args={"wait_for": str(suite.path / "go")})
    with suite.started() as running:
        running.wait_for_ranks()
        (run,) = suite.runs()
        result = suite.run_apart("--cluster-set", "small.args.wait_for=/dev/null")
        assert result.ret == 0 and run.name not in result.stdout.str()
        assert not (suite.reports / run.name / "report.json").exists()
        (suite.path / "go").touch()
        running.wait()
    assert report(suite, run.name)["verdict"] == "FIT"


def test_unreportable_run_is_tried_once(suite: Suite) -> None:
    """A run with unusable files is reported once and marked, and affects no later run."""
    run = killed(suite)
    path = suite.shared / run / "run.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "hardware": None, "begun": "now", "phases_chosen": 7}))
    finish_job(suite, run)
    first, second = suite.run_apart("-k", "first"), suite.run_apart("-k", "first")
    assert first.ret == second.ret == 0
    first.stdout.fnmatch_lines([f"*run {run}: its report cannot be created: TypeError*"])
    assert run not in second.stdout.str()
    assert "TypeError" in (suite.reports / run / "report_failed.txt").read_text()


def test_killed_run_with_a_failure_outside_the_phases_is_unfit(suite: Suite) -> None:
    """The journal also has failures of tests outside the phases."""
    suite.path.joinpath("test_a.py").write_text("def test_other():\n    assert 0\n")
    run = killed(suite)
    finish_job(suite, run)
    suite.run_apart("-k", "first")
    assert report(suite, run)["verdict"] == "UNFIT"


def test_recovered_report_uses_the_cluster_references(suite: Suite) -> None:
    """Any command that reports it reads the profile from the run's own cluster.yaml."""
    run = killed(suite)
    text = (suite.path / "cluster.yaml").read_text()
    reference = {"value": 20.0, "lower": "-10 %", "unit": "steps/s", "source": "a document"}
    held = json.loads(text)
    held["clusters"]["one"]["references"] = {"first": {"steps_per_s": reference}}
    (suite.path / "cluster.yaml").write_text(json.dumps(held))
    finish_job(suite, run)
    history(suite)
    assert report(suite, run)["phases"][0]["metrics"]["steps_per_s"]["met"] is False


@pytest.mark.parametrize("text", ["", "[]", '{"evidence": "/etc"}', "{", "\x00"])
def test_foreign_directory_is_left_alone(suite: Suite, text: str) -> None:
    """A directory with the name of a run but foreign content is neither reported nor changed."""
    suite.phase()
    odd = suite.reports / "20261101-020000-abcdef"
    odd.mkdir(parents=True)
    (odd / "run.json").write_text(text)
    assert suite.run().ret == 0
    assert [path.name for path in odd.iterdir()] == ["run.json"]


def test_run_cut_short_is_marked_as_partial(suite: Suite) -> None:
    """After -x, the phases without a result are named."""
    suite.cluster(phases={"first": None, "second": None})
    suite.phase("first", "def test_bad(self, phase):\n    assert 0")
    suite.phase("second")
    suite.run("-x")
    record = suite.record()
    assert record["partial"] == "no result for second" and record["verdict"] == "UNFIT"
