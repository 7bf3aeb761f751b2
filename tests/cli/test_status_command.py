"""`clustersmoke status`, run as a user runs it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.run_directory import RunDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from tests.support.harness import Suite
from tests.support.waiting import wait_for


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main([*map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_run_under_way_shows_its_step_and_expected_end(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real run after an earlier one, from another process: who watches it, step 3 of 40, when it
    should end; in JSON too. Nothing of the run changes, and once it has ended it is not shown."""
    suite.phase(args={"steps": 40})
    assert suite.run_apart().ret == 0
    go = suite.path / "go"
    suite.phase(args={"steps": 40, "before": 3, "wait_for": str(go)})
    words = ("status", "--cluster-config", suite.file)
    with suite.started() as running:
        running.wait_for_ranks()

        def look() -> str | None:
            status, out, err = run(capsys, *words)
            assert (status, err) == (0, "")
            return out if "step 3 of 40" in out else None

        out = wait_for("step 3", look)
        status, text, _ = run(capsys, *words, "--json")
        go.touch()
        assert running.wait().ret == 0
    first, head, row = out.splitlines()
    assert re.fullmatch(rf"run [-\w]+ on one: pid {running.pid} on \S+", first)
    assert head.startswith("phases: 0 of 1 phase done, 1 running")
    assert "small" in row and "running" in row and "loss" in row
    (shown,) = json.loads(text)["runs"]
    (phase,) = shown["phases"]
    assert (phase["phase"], phase["state"], phase["step"], phase["steps"]) == (
        *("small", "running"),
        *(3, 40),
    )
    assert shown["expected_from_runs"] == 1 and shown["expected_end"] > shown["begun"]
    assert "expected end" in head
    status, out, _ = run(capsys, *words)
    assert (status, out) == (0, f"no run is under way below {suite.shared}\n")


def test_unreadable_run_costs_a_line(
    suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, or in the JSON; the status is 0."""
    shared = tmp_path / "runs"
    (shared / "20261101-020000-00000a").mkdir(parents=True)
    (shared / "20261101-020000-00000a").chmod(0o700)
    bad = shared / "20261102-020000-00000b"
    bad.mkdir(mode=0o700)
    (bad / "run.json").write_text(json.dumps({"run_id": bad.name, "cluster": "one"}))
    intent = {"event": "intent", "time": 1.0, "mono": 1.0, "phase": "x" * 10_000}
    (bad / "journal.jsonl").write_text(json.dumps(intent) + "\n")
    why = [
        "run 20261101-020000-00000a is left out: its run.json is missing or torn",
        "run 20261102-020000-00000b is left out: File name too long",
    ]
    status, out, err = run(capsys, "status", "--shared-dir", shared)
    assert (status, out) == (0, f"no run is under way below {shared}\n")
    assert err.splitlines() == why
    _, out, _ = run(capsys, "status", "--shared-dir", shared, "--json")
    assert json.loads(out) == {"runs": [], "left_out": why}


@pytest.mark.parametrize(
    ("about", "line"),
    [
        ({}, "no phase is submitted yet"),
        ({"screen": "gpu", "report": "/reports\0/x"}, "screen of gpu, 1 node answered"),
    ],
)
def test_run_without_phases_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], about: dict[str, str], line: str
) -> None:
    """A screen, and a run in its first second, are not said to be done."""
    run_id = "20261101-020000-00000a"
    (tmp_path / run_id).mkdir(mode=0o700)
    known = {"run_id": run_id, "cluster": "one", "phases_chosen": [], "begun": 1.8e9, **about}
    (tmp_path / run_id / "run.json").write_text(json.dumps(known))
    screened = {"event": "screened", "time": 1.0, "mono": 1.0, "node": "n1", "end": "answered"}
    if about:
        (tmp_path / run_id / "journal.jsonl").write_text(json.dumps(screened) + "\n")
    status, out, err = run(capsys, "status", "--shared-dir", tmp_path)
    assert (status, err, out.splitlines()[1:]) == (0, "", [line])
    _, out, _ = run(capsys, "status", "--shared-dir", tmp_path, "--json")
    (shown,) = json.loads(out)["runs"]
    assert (shown["screen"], shown["answered"]) == (("gpu", 1) if about else (None, None))


def test_unknown_cluster_is_refused(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names that the file has."""
    words = ("--cluster-config", suite.file, "--cluster", "on")
    status, out, err = run(capsys, "status", *words)
    assert (status, out) == (2, "") and "no profile `on`" in err and "did you mean `one`?" in err


def test_directory_that_is_missing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped one would say that no run is under way."""
    status, out, err = run(capsys, "status", "--shared-dir", tmp_path / "no")
    assert (status, out) == (2, "")
    assert f"--shared-dir: {tmp_path / 'no'} is not a directory; expected the `shared_dir`" in err


def test_narrow_terminal_still_shows_each_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few columns it has. Jobs that have ended in a run that nobody watches are not said to
    run, and no end is expected of them."""
    run_id = "20261101-020000-00000a"
    directory = RunDir(tmp_path / run_id)
    directory.phase("small").root.mkdir(parents=True)
    directory.root.chmod(0o700)
    about = {"run_id": run_id, "cluster": "one", "phases_chosen": ["small"], "begun": 1.8e9}
    write_json(directory.run, about)
    journal = EventWriter(directory.journal)
    journal.write("intent", phase="small", token="t")
    journal.write("submitted", phase="small", job_id="7")
    journal.close()
    write_json(directory.phase("small").claim, {"token": "t", "job_id": "7", "node": "n1"})
    directory.phase("small").node_result(0).parent.mkdir(parents=True)
    write_json(directory.phase("small").node_result(0), {"ok": True})
    os.utime(directory.run, (0, 0))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "10")
    status, out, _ = run(capsys, "status", "--shared-dir", tmp_path)
    assert status == 0
    first, head, row = out.splitlines()
    assert first.endswith(
        f"no process watches it; pytest --cluster one --cluster-attach {run_id} goes on with it"
    )
    assert head == "phases: 0 of 1 phase done, 1 ending"
    assert row.split() == ["small", "ending", "awaiting", "its", "result"]


def test_missing_cluster_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere than beside cluster.yaml."""
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "status")
    assert (status, out) == (2, "") and "no cluster.yaml in" in err
