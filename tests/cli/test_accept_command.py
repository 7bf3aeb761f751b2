"""`clustersmoke references accept`: a new level is recorded, and earlier runs no longer count."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_clustersmoke.cli import accept_command, main
from pytest_clustersmoke.evidence.fingerprint import Fingerprint
from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.history.figure_history import key_of, read_figure_past
from pytest_clustersmoke.evidence.node_observation import DeviceFigure
from pytest_clustersmoke.evidence.run_record import PastRecord
from tests.evidence.history.made import DAY_S, night, nights
from tests.support.records import BEGUN, VERSIONS, annotate, metric, parsed, phase

OF = ("--cluster", "gilbreth", "--phase", "zero1_4node")


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty good runs, and a clock that is half a day after the last of them."""
    both = {"steps_per_s": metric(9.5), "samples_per_s": metric(100.0, "samples/s")}
    nights(tmp_path, 30, metrics=both)
    clock = Mock(time=lambda: BEGUN + 29.5 * DAY_S)
    monkeypatch.setattr(accept_command, "time", clock)
    monkeypatch.setenv("LOGNAME", "anna")
    return tmp_path


def accept(reports: Path, *words: str) -> int:
    return main(["references", "accept", *words, "--report-dir", str(reports)])


def past(reports: Path, number: int, name: str = "steps_per_s") -> PastRecord:
    both = {"steps_per_s": metric(9.0), "samples_per_s": metric(90.0, "samples/s")}
    record = night(number, metrics=both)
    annotate(record, reports)
    judged: PastRecord = record["phases"][0]["metrics"][name]["past"]
    return judged


def test_accepted_level_is_stored(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the person, the time and the reason; the output repeats them."""
    assert accept(reports, *OF, "--reason", "other cables") == 0
    assert capsys.readouterr().out == (
        "every metric of zero1_4node on gilbreth: accepted on 2026-12-17 by anna: other cables\n"
        "Runs from now on are compared with each other only: outliers after 8 good runs, drift "
        "after 20.\n"
    )
    with contextlib.closing(sqlite3.connect(reports / database.NAME)) as connection:
        rows = connection.execute("SELECT * FROM accepted_levels").fetchall()
    assert rows == [
        (1, "gilbreth", "zero1_4node", "", BEGUN + 29.5 * DAY_S, "anna", "other cables")
    ]


def test_earlier_runs_no_longer_count(reports: Path) -> None:
    """Neither for outliers nor for drift, and only from the acceptance on."""
    assert past(reports, 30)["runs"] == 30
    accept(reports, *OF, "--reason", "other cables")
    judged = past(reports, 30)
    assert (judged["status"], judged["runs"]) == ("not enough history", 0)
    assert (judged["drift"]["status"], judged["drift"]["nights"]) == ("not measured", 0)
    assert past(reports, 29)["runs"] == 29


def test_one_metric_is_accepted(reports: Path) -> None:
    """The other metrics of the phase keep their past."""
    accept(reports, *OF, "--metric", "steps_per_s", "--reason", "power limit", "--by", "ben")
    assert past(reports, 30)["runs"] == 0
    assert past(reports, 30, "samples_per_s")["runs"] == 30


def test_figure_of_a_device_is_accepted_alone(reports: Path) -> None:
    """Metrics keep their past; the figure begins a new one."""
    gemm = DeviceFigure("n1", "GPU-a", "gemm_tflops", 700.0, "TFLOP/s", True, "zero1_4node")
    for number in range(8):
        record = parsed({**night(20 + number, 9.5), "run_id": f"figure-{number}"})
        history_store.store_run(record, reports, figures=[gemm])
    usual = phase("zero1_4node")
    who = Fingerprint(usual["hardware"], usual["shape"], dict(VERSIONS))

    def figure_past() -> int:
        found = read_figure_past(reports, "gilbreth", "zero1_4node", who, [gemm], math.inf)
        return len(found[key_of(gemm)])

    before = past(reports, 30)["runs"]
    assert figure_past() == 8
    assert accept(reports, *OF, "--metric", "gemm_tflops", "--reason", "power limit") == 0
    assert figure_past() == 0 and past(reports, 30)["runs"] == before


def test_drift_is_judged_against_the_accepted_level(reports: Path) -> None:
    """A lower level that was accepted is ok; a loss from it fails and names who accepted it."""
    accept(reports, *OF, "--reason", "power limit", "--by", "ben")
    nights(reports, 30, first=30, metrics={"steps_per_s": metric(9.0)})
    assert past(reports, 60)["drift"]["status"] == "ok"
    nights(reports, 6, first=60, metrics={"steps_per_s": metric(8.6)})
    record = night(66, 8.6)
    annotate(record, reports)
    judged = record["phases"][0]["metrics"]["steps_per_s"]["past"]
    assert judged["status"] == "fail"
    assert (
        "4.4 % below the accepted level 9.000 (from 24 good nights, accepted on 2026-12-17 by ben: "
        "power limit; spread" in judged["text"]
    )


def test_commands_use_the_accepted_level(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """References are proposed from the runs at the accepted level."""
    accept(reports, *OF, "--reason", "other cables")
    nights(reports, 8, first=30, metrics={"steps_per_s": metric(9.0)})
    capsys.readouterr()
    words = ("references", "propose", "--cluster", "gilbreth", "--report-dir", str(reports))
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "# 8 runs, median 9 steps/s" in shown
    assert "median of 8 runs, 2026-12-18 to 2026-12-25" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cluster", "gilbert", "--phase", "x"), "no cluster `gilbert` in the history"),
        (("--cluster", "gilbreth", "--phase", "zero1_4nod"), "did you mean `zero1_4node`?"),
        ((*OF, "--metric", "step_per_s"), "did you mean `steps_per_s`?"),
        ((*OF, "--reason", " "), "the reason is empty"),
    ],
)
def test_mistakes_are_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """Unknown names and an empty reason: exit status 2, and nothing is stored."""
    assert accept(reports, "--reason", "x", *words) == 2
    assert message in capsys.readouterr().err
    assert past(reports, 30)["runs"] == 30


def test_locked_history_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another writer holds the lock, the command says so and ends with 2."""
    monkeypatch.setattr(
        accept_command,
        "store_accepted_level",
        Mock(side_effect=database.HistoryUnusable("nothing was added to the history: locked")),
    )
    assert accept(reports, *OF, "--reason", "x") == 2
    assert "nothing was added to the history: locked" in capsys.readouterr().err
