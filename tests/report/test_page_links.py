"""Links of index.html to the evidence beside it: none is dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report import run_archive
from pytest_clustersmoke.report.publication import publish
from tests.report.killed_run import killed
from tests.report.page_samples import dead, links
from tests.support import records
from tests.support.harness import Suite

WRITTEN = {"report.json", "metrics.prom", "../index.html"}  # with every page


def published(tmp_path: Path, *names: str) -> Path:
    """The report of a run with one phase on two nodes, which left these files."""
    record = records.parsed(records.run(records.phase("wide", nodes=2)))
    run = RunDir(tmp_path / "runs" / record.run_id)
    for name in names:
        path = run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    publish(record, run, tmp_path / "reports", {})
    return tmp_path / "reports" / record.run_id


def test_only_existing_files_are_linked(tmp_path: Path) -> None:
    """One of two nodes wrote its log, one of four ranks its events; other files are named without
    a link."""
    kept = {
        "journal.jsonl",
        "phases/wide/result.json",
        "phases/wide/nodes/0001/launcher.log",
        "phases/wide/ranks/00003.jsonl",
    }
    report = published(tmp_path, *kept)
    assert dead(report) == [] and links(report) == kept | {*WRITTEN, "phases/wide/"}
    html = (report / "index.html").read_text()
    for name in ("junit.xml", "batch.sh", "facts.json"):
        assert f"<code>{name}</code>" in html


def test_phase_without_files_has_no_link(tmp_path: Path) -> None:
    """Its folder is not linked either: it does not exist."""
    assert links(published(tmp_path)) == WRITTEN


@pytest.mark.parametrize("limit", ["MAX_FILE_BYTES", "MAX_BYTES"])
def test_file_too_large_to_copy_is_not_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Neither a file over its limit, nor one over the limit of all files together."""
    monkeypatch.setattr(run_archive, "MAX_FILE_BYTES", 2 if limit == "MAX_FILE_BYTES" else 4)
    monkeypatch.setattr(run_archive, "MAX_BYTES", 4)
    names = [f"phases/wide/ranks/0000{rank}.jsonl" for rank in range(4)]
    report = published(tmp_path, "journal.jsonl", *names)
    copied = {str(path.relative_to(report)) for path in report.rglob("*.jsonl")}
    assert dead(report) == [] and {link for link in links(report) if "jsonl" in link} == copied
    assert len(copied) == (0 if limit == "MAX_FILE_BYTES" else 2)


def test_run_without_junit_xml_has_no_dead_link(suite: Suite) -> None:
    """junit.xml is written elsewhere, and one phase never ran."""
    suite.cluster(phases={"small": None, "held": None}, setup=["false"])
    suite.phase()
    suite.phase("held")
    result = suite.run("--junitxml", suite.path / "elsewhere.xml")
    assert result.ret == 1
    report = suite.report.resolve()
    assert dead(report) == [] and "junit.xml" not in links(report)
    assert {*WRITTEN, "run.json", "journal.jsonl", "phases/held/result.json"} <= links(report)


def test_killed_run_has_no_dead_link(suite: Suite) -> None:
    """It has neither junit.xml nor a result of the phase that was still running."""
    run = killed(suite)
    (suite.path / "go").touch()
    suite.run_apart("-k", "first")
    report = suite.reports / run
    assert dead(report) == []
    assert {"phases/first/result.json", "phases/second/", "journal.jsonl"} <= links(report)
