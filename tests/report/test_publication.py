"""The rendered files of a report: written whole or not at all, readable by others; a file that
cannot be written fails no run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report import publication
from pytest_clustersmoke.report.publication import metrics_path, publish
from tests.report.nights import night
from tests.support import records
from tests.support.harness import Suite, lines_with

SLOW = records.finding(id="slow-rank", hosts=["node2"])
RENDERED = {"report.json", "metrics.prom", "index.html"}


def write(tmp_path: Path, record: records.Record, **environ: str) -> list[str]:
    return published(tmp_path, records.parsed(record), **environ)


def published(tmp_path: Path, record: RunRecord, **environ: str) -> list[str]:
    """Publish a run without evidence; return the remarks on what could not be written."""
    run = RunDir(tmp_path / "runs" / record.run_id)
    return publish(record, run, tmp_path, environ)


def test_every_file_is_written_and_readable(tmp_path: Path) -> None:
    """Others can read them whatever the umask is, and no temporary file is left."""
    record = records.run()
    old = os.umask(0o077)
    try:
        assert write(tmp_path, record) == []
    finally:
        os.umask(old)
    target = tmp_path / record["run_id"]
    assert {path.name for path in target.iterdir()} == RENDERED
    collected = tmp_path / "metrics-gilbreth.prom"
    for path in (*target.iterdir(), collected):
        assert path.stat().st_mode & 0o777 == 0o644, path
    assert json.loads((target / "report.json").read_text())["run_id"] == record["run_id"]
    assert collected.read_text() == (target / "metrics.prom").read_text()
    assert "FIT" in (target / "index.html").read_text()


def test_each_cluster_has_its_own_metrics(tmp_path: Path) -> None:
    """The report directory has the metrics of the newest complete run of each cluster."""
    for cluster, verdict in (("one", "FIT"), ("two", "FIT"), ("one", "UNFIT")):
        assert write(tmp_path, records.run(cluster=cluster, verdict=verdict)) == []
    assert {path.name for path in tmp_path.glob("*.prom")} == {
        "metrics-one.prom",
        "metrics-two.prom",
    }
    assert 'verdict="UNFIT"} 1.0' in (tmp_path / "metrics-one.prom").read_text()
    assert 'verdict="FIT"} 1.0' in (tmp_path / "metrics-two.prom").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": "multinode"},
        {"interrupted": True},
        {"partial": "its controller was killed"},
        {"proof": records.proof(), "verdict": "PROVEN"},
    ],
)
def test_partial_run_does_not_replace_cluster_metrics(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Only its own directory gets its metrics; the collector's file keeps the last complete run."""
    whole, part = records.run(), records.run(**changes)
    assert write(tmp_path, whole) == write(tmp_path, part) == []
    assert whole["run_id"] in (tmp_path / "metrics-gilbreth.prom").read_text()
    assert part["run_id"] in (tmp_path / part["run_id"] / "metrics.prom").read_text()


def test_metrics_say_where_the_nodes_stand_after_the_run(tmp_path: Path) -> None:
    """What this run found is in it already; the report of an earlier run, rendered again, does not
    know what came later."""
    sound, slow = records.phase(), records.phase(findings=[SLOW])
    nights = [night(1, sound), night(2, slow), night(3, slow)]
    for record in nights:
        assert write(tmp_path, record) == []
    named = 'clustersmoke_node_named_runs{cluster="gilbreth",node="node2"}'
    assert f"{named} 2.0" in (tmp_path / "metrics-gilbreth.prom").read_text()
    for record, count in zip(nights, (0, 1, 2), strict=True):
        target = tmp_path / record["run_id"]
        assert publication.render_again(target) == []
        assert f"{named} {count:.1f}" in (target / "metrics.prom").read_text()


def test_metrics_are_written_without_a_history(tmp_path: Path) -> None:
    """A remark says so, once, and only the gauges of nodes are absent."""
    (tmp_path / "history.db").write_text("not a database " * 100)
    remarks = write(tmp_path, records.run())
    text = (tmp_path / "metrics-gilbreth.prom").read_text()
    assert "clustersmoke_run_fit" in text and "clustersmoke_node" not in text
    assert len(remarks) == 1 and "history.db" in remarks[0]


def test_cluster_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    """A cluster's name is part of one file name."""
    record = records.parsed(records.run(cluster="../up/and away"))
    assert metrics_path(record, tmp_path) == [tmp_path / "metrics-..%2Fup%2Fand%20away.prom"]


def test_unwritable_report_raises(tmp_path: Path) -> None:
    """Without report.json there is no report: the error reaches the caller."""
    record = records.run()
    (tmp_path / record["run_id"]).write_text("a file")
    with pytest.raises(OSError, match=record["run_id"]):
        write(tmp_path, record)
    assert not list(tmp_path.glob("*.prom"))


def test_unwritable_view_is_a_remark(tmp_path: Path) -> None:
    """The verdict is in report.json; each missing file is named in one line."""
    record = records.run()
    (tmp_path / "metrics-gilbreth.prom" / "in_the_way").mkdir(parents=True)
    remarks = write(tmp_path, record, GITHUB_STEP_SUMMARY=str(tmp_path))
    assert len(remarks) == 2 and all("\n" not in remark for remark in remarks)
    assert remarks[0].startswith("GitHub's step summary was not written: IsADirectoryError: ")
    assert remarks[1].startswith("metrics-gilbreth.prom was not written: IsADirectoryError: ")
    assert {path.name for path in (tmp_path / record["run_id"]).iterdir()} == RENDERED


def test_view_that_fails_to_render_is_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a view leaves report.json intact."""
    record = records.parsed(records.run())

    def broken(*_: object) -> str:
        raise ZeroDivisionError

    for view in ("render_metrics", "page"):
        monkeypatch.setattr(publication, view, broken)
    remarks = published(tmp_path, record)
    assert [remark.split(" was not written: ")[0] for remark in remarks] == [
        "index.html",
        "metrics.prom",
        "metrics-gilbreth.prom",
    ]
    assert (tmp_path / record.run_id / "report.json").is_file()


def test_real_run_writes_every_file(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run publishes every file and appends its summary to that of GitHub's step."""
    step = suite.path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    suite.phase(args={"steps": 3})
    result = suite.run()
    assert result.ret == 0 and "was not written" not in result.stdout.str()
    assert {path.name for path in suite.report.iterdir()} >= RENDERED
    record = suite.record()
    metrics = (suite.reports / "metrics-one.prom").read_text()
    assert record["run_id"] in metrics and "clustersmoke_phase_steps_per_second" in metrics
    text = step.read_text()
    assert text.startswith("before\n\n## one: FIT\n") and record["run_id"] in text
    assert "FIT: 1 of 1 phases passed" in text and "10\\.00" in text


FULL_DISK = """\
import errno, os
from pytest_clustersmoke.report import publication

def page(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

publication.page = page
"""


def test_page_that_a_full_disk_costs_shows_in_the_exit_status(suite: Suite) -> None:
    """The run was FIT, and its readers would find no page; the terminal says which file is
    missing."""
    suite.phase()
    suite.path.joinpath("conftest.py").write_text(FULL_DISK)
    result = suite.run_apart()
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    (line,) = lines_with(result, "was not written")
    assert line == "index.html was not written: OSError: [Errno 28] No space left on device"
    assert lines_with(result, "FIT: 1 of 1 phases passed")


def test_page_over_runs_that_cannot_be_written_shows_in_the_exit_status(suite: Suite) -> None:
    """The verdict stays, and a line names the page, as for the page of the run."""
    suite.phase()
    (suite.reports / "index.html" / "in_the_way").mkdir(parents=True)
    result = suite.run_apart()
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    (line,) = lines_with(result, "was not written")
    assert line.startswith(
        "the page over all runs, index.html of the report directory, was not written: "
    )
    assert lines_with(result, "FIT: 1 of 1 phases passed")
    assert suite.record()["verdict"] == "FIT"


def test_users_of_a_shared_report_directory_can_write_all_its_files(tmp_path: Path) -> None:
    """If it is setgid and its group can write it: files are 0664 and directories 2775, whatever the
    umask; the page over runs and the history as well."""
    shared, run = tmp_path / "reports", RunDir(tmp_path / "runs" / "20261101-020000-abcdef")
    shared.mkdir()
    shared.chmod(0o2775)
    record = records.parsed(records.run(records.phase("wide", nodes=2)))
    log = run.phase("wide").root / "nodes" / "0001" / "launcher.log"
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    run.journal.write_text('{"event": "closed", "time": 1, "mono": 1}\n')
    old = os.umask(0o077)
    try:
        assert publish(record, run, shared, {}) == []
    finally:
        os.umask(old)
    modes = {path: path.lstat().st_mode & 0o7777 for path in shared.rglob("*")}
    files = {path.name: mode for path, mode in modes.items() if path.is_file()}
    assert {"index.html", "history.db", "launcher.log", "journal.jsonl", *RENDERED} <= set(files)
    assert set(files.values()) == {0o664}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o2775}


@pytest.mark.parametrize("name", ["run.json", "report.json", "journal.jsonl"])
def test_fifo_in_an_old_run_blocks_nobody(suite: Suite, name: str) -> None:
    """In the shared directory and among the reports, in the place of a record."""
    for folder in (suite.shared, suite.reports):
        old = folder / "20260101-020000-abcdef"
        old.mkdir(parents=True)
        os.mkfifo(old / name)
    suite.phase()
    assert suite.run_apart().ret == 0


def test_unwritable_step_summary_fails_no_run(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one remark above the verdict."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(suite.path / "absent" / "step.md"))
    suite.phase()
    result = suite.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["GitHub's step summary was not written: FileNotFoundError: *", "FIT: 1 of 1 phases passed"]
    )
