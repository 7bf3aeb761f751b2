"""`clustersmoke summary`, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from tests.support import records
from tests.support.unreadable_folder import deny_reading


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main([*map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def store(report_dir: Path, run_id: str, **changes: Any) -> None:
    record = records.run(run_id=run_id, **changes)
    (report_dir / run_id).mkdir()
    (report_dir / run_id / "report.json").write_text(json.dumps(record))
    # A report with a journal is complete.
    (report_dir / run_id / "journal.jsonl").write_text("")


FIRST, SECOND, PROOF = "20261101-020000-00000a", "20261102-020000-00000b", "20261103-020000-00000c"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A run of each of two clusters, and a proof, which is the newest."""
    store(tmp_path, FIRST, cluster="nebius", sentence="FIT: first", evidence="/nowhere")
    store(tmp_path, SECOND, verdict="UNFIT", sentence="UNFIT: second", failed=["x"])
    proof = records.proof(records.gate())
    store(tmp_path, PROOF, verdict="PROVEN", sentence="PROVEN: third", proof=proof)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ((), "UNFIT: second"),
        (("latest",), "UNFIT: second"),
        (("--cluster", "nebius"), "FIT: first"),
        (("20261101",), "FIT: first"),
        ((PROOF,), "PROVEN: third"),
    ],
)
def test_first_line_is_the_verdict_of_the_run(
    reports: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], first: str
) -> None:
    """By default that of the newest run that is not a proof; the status is 0 for every verdict."""
    status, out, err = run(capsys, "summary", "--report-dir", reports, *words)
    assert (status, out.splitlines()[0], err) == (0, first, "")
    assert len(out.splitlines()) <= 10


def test_folder_of_a_colleague_that_lets_no_others_in_is_no_report(
    reports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deny_reading(monkeypatch, reports / "20991231-020000-00000f")
    status, out, err = run(capsys, "summary", "--report-dir", reports)
    assert (status, out.splitlines()[0], err) == (0, "UNFIT: second", "")


def test_json_and_markdown_say_the_same(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs and for chats."""
    _, out, _ = run(capsys, "summary", "--report-dir", reports, "--json")
    read = json.loads(out)
    assert (read["verdict"], read["run_id"], read["causes"]) == ("UNFIT", SECOND, ["x"])
    assert read["report"] == str(reports / SECOND)
    _, out, _ = run(capsys, "summary", "--report-dir", reports, "--markdown")
    assert out.splitlines()[:2] == ["**UNFIT: second**", ""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("2026110",), "`2026110` matches several runs; give more of the id: 20261103"),
        (("20251101",), "no report of run `20251101` in "),
        (("--cluster", "lab"), "--report-dir: no report of a run on lab in "),
        ((FIRST, "--cluster", "gilbreth"), f"--cluster: run {FIRST} is on nebius"),
    ],
)
def test_run_that_is_not_there_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """Status 2, and one line that says what is wrong."""
    status, out, err = run(capsys, "summary", "--report-dir", reports, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"clustersmoke: {message}") and len(err.splitlines()) == 1
    if "--report-dir: " in message:
        assert err.endswith("; expected a run of phases; give the id of a screen or a proof\n")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', "[" * 100_000])
def test_torn_report_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """It is not taken for a run."""
    (reports / SECOND / "report.json").write_text(text)
    status, out, err = run(capsys, "summary", "--report-dir", reports, SECOND)
    assert (status, out) == (2, "")
    assert "report.json is not a report of this version" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(("publish", "hidden"), [("all", False), ("names", True), (None, True)])
def test_run_without_a_report_is_the_end_of_pytests_output(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    publish: str | None,
    hidden: bool,
) -> None:
    """With --log. What `publish: names` hides is hidden, also where no cluster.yaml says so."""
    monkeypatch.chdir(tmp_path)
    if publish:
        write_profile(tmp_path / "cluster.yaml", publish)
    log = tmp_path / "night.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "E: /home/jane/x.py:7\n")
    words = ("summary", "none", "--report-dir", tmp_path, "--cluster", "one", "--log", log)
    status, out, err = run(capsys, *words)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[:3] == ["no report", "pytest's output ends with:", "line 81"] and len(lines) == 22
    assert lines[-1] == ("E: <path>:7" if hidden else "E: /home/jane/x.py:7")


def write_profile(path: Path, publish: str) -> None:
    profile = {
        "backend": "local",
        "shared_dir": str(path.parent / "runs"),
        "hardware": {"gpu": "any", "device": "cpu", "gpus_per_node": 1},
        "limits": {"publish": publish},
        "phases": {"small": None},
    }
    path.write_text(json.dumps({"clusters": {"one": profile}}))


def test_log_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2."""
    words = ("summary", "none", "--report-dir", tmp_path, "--log", tmp_path / "absent")
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "") and "absent cannot be read: No such file" in err
