"""Links of index.html to the evidence beside it: none that leads nowhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report import run_archive
from pytest_clustersmoke.report.publication import publish
from tests.report.test_page import Elements
from tests.report.test_recovery import killed
from tests.support import records
from tests.support.harness import Suite

WRITTEN = {"report.json", "metrics.prom"}  # with every page


def links(report: Path) -> set[str]:
    """Where the page of this report leads, below it."""
    found = Elements((report / "index.html").read_text(encoding="utf-8")).all("a")
    return {unquote(str(one["href"])) for one in found if not str(one["href"]).startswith("#")}


def dead(report: Path) -> list[str]:
    return sorted(one for one in links(report) if not (report / one).exists())


def published(tmp_path: Path, *names: str) -> Path:
    """The report of a run of one phase of two nodes, which left these files."""
    record = records.parsed(records.run(records.phase("wide", nodes=2)))
    run = RunDir(tmp_path / "runs" / record.run_id)
    for name in names:
        path = run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    publish(record, run, tmp_path / "reports", {})
    return tmp_path / "reports" / record.run_id


def test_only_existing_files_are_linked(tmp_path: Path) -> None:
    """Of two nodes one wrote its log, of four ranks one its events; the others' names stand there
    without a link."""
    kept = {
        "journal.jsonl",
        "phases/wide/result.json",
        "phases/wide/nodes/0001/torchrun.log",
        "phases/wide/ranks/00003.jsonl",
    }
    report = published(tmp_path, *kept)
    assert dead(report) == [] and links(report) == kept | {*WRITTEN, "phases/wide/"}
    html = (report / "index.html").read_text()
    for name in ("junit.xml", "batch.sh", "facts.json"):
        assert f"<code>{name}</code>" in html


def test_phase_without_files_has_no_link(tmp_path: Path) -> None:
    """Not to its folder either, which nobody makes."""
    assert links(published(tmp_path)) == WRITTEN


@pytest.mark.parametrize("limit", ["MAX_FILE_BYTES", "MAX_BYTES"])
def test_file_too_large_to_copy_is_not_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Of one file, or of all."""
    monkeypatch.setattr(run_archive, "MAX_FILE_BYTES", 2 if limit == "MAX_FILE_BYTES" else 4)
    monkeypatch.setattr(run_archive, "MAX_BYTES", 4)
    names = [f"phases/wide/ranks/0000{rank}.jsonl" for rank in range(4)]
    report = published(tmp_path, "journal.jsonl", *names)
    copied = {str(one.relative_to(report)) for one in report.rglob("*.jsonl")}
    assert dead(report) == [] and {one for one in links(report) if "jsonl" in one} == copied
    assert len(copied) == (0 if limit == "MAX_FILE_BYTES" else 2)


def test_run_without_junit_xml_has_no_dead_link(suite: Suite) -> None:
    """A run that writes junit.xml elsewhere, one phase of which never ran."""
    suite.cluster(phases={"small": None, "held": None}, setup=["false"])
    suite.phase()
    suite.phase("held")
    result = suite.run("--junitxml", suite.path / "elsewhere.xml")
    assert result.ret == 1
    report = suite.report.resolve()
    assert dead(report) == [] and "junit.xml" not in links(report)
    assert {*WRITTEN, "run.json", "journal.jsonl", "phases/held/result.json"} <= links(report)


def test_killed_run_has_no_dead_link(suite: Suite) -> None:
    """Nobody wrote its junit.xml, nor the result of the phase that still ran."""
    run = killed(suite)
    (suite.path / "go").touch()
    suite.run_apart("-k", "first")
    report = suite.reports / run
    assert dead(report) == []
    assert {"phases/first/result.json", "phases/second/", "journal.jsonl"} <= links(report)
