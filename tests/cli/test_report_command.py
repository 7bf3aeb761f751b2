"""`clustersmoke report`, run as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report.publication import publish
from tests.report.nights import night, rated
from tests.support import records
from tests.support.unreadable_folder import deny_reading

Report = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["report", "--report-dir", str(tmp_path), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def published(report_dir: Path, count: int) -> list[Path]:
    """The reports of so many nights."""
    made = []
    for number in range(count):
        record = records.parsed(night(number, rated("wide", 10.0)))
        publish(record, RunDir(report_dir / "runs" / record.run_id), report_dir, {})
        made.append(report_dir / record.run_id)
    return made


def test_lost_pages_are_rendered_again(tmp_path: Path, report: Report) -> None:
    """Those of the run and the page over all runs, as they were, from record and history."""
    targets = published(tmp_path, 2)
    pages = [*(target / "index.html" for target in targets), tmp_path / "index.html"]
    before = [page.read_text() for page in pages]
    for page in pages[1:]:
        page.unlink()
    (targets[1] / "metrics.prom").unlink()
    status, out, err = report()
    assert (status, out, err) == (0, f"{targets[1] / 'index.html'}\n", "")
    assert [page.read_text() for page in pages] == before
    assert (targets[1] / "metrics.prom").is_file()


def test_folder_of_a_colleague_that_lets_no_others_in_is_no_report(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target,) = published(tmp_path, 1)
    deny_reading(monkeypatch, tmp_path / "20991231-020000-00000f")
    assert report() == (0, f"{target / 'index.html'}\n", "")


@pytest.mark.parametrize("word", ["previous", "whole", "prefix"])
def test_run_is_named_as_in_other_commands(tmp_path: Path, report: Report, word: str) -> None:
    """By `previous`, its id or a prefix."""
    first, _ = published(tmp_path, 2)
    words = {"previous": "previous", "whole": first.name, "prefix": first.name[:-3]}
    status, out, _ = report(words[word])
    assert (status, out) == (0, f"{first / 'index.html'}\n")


def test_unusable_runs_are_refused(tmp_path: Path, report: Report) -> None:
    """An unknown run, a prefix of several, a record of another version."""
    first, second = published(tmp_path, 2)
    status, _, err = report("2020")
    assert status == 2 and "no report of a run `2020`" in err
    status, _, err = report(first.name[:3])
    assert status == 2 and "matches several runs" in err and second.name in err
    record = json.loads((first / "report.json").read_text())
    (first / "report.json").write_text(json.dumps({**record, "schema": 99}))
    status, _, err = report(first.name)
    assert status == 2 and "is not a record of this version: schema" in err
    (first / "report.json").write_text("[]")
    status, _, err = report(first.name)
    assert status == 2 and "is not a JSON object" in err


def test_page_that_cannot_be_written_is_named(tmp_path: Path, report: Report) -> None:
    (target,) = published(tmp_path, 1)
    (target / "index.html").unlink()
    (target / "index.html" / "in_the_way").mkdir(parents=True)
    status, _, err = report()
    assert status == 2 and "index.html was not written: IsADirectoryError" in err


def test_directory_without_reports_is_refused(tmp_path: Path, report: Report) -> None:
    status, _, err = report("--report-dir", str(tmp_path / "absent"))
    assert status == 2 and "no reports in" in err
