"""Events of a rank program without a training loop: progress marks, measurements, metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import Events, read_events
from pytest_clustersmoke.rank import Rank
from pytest_clustersmoke.rank.rank_environment import RankEnvironment, RankMisuse
from pytest_clustersmoke.rank.step_marks import PROGRAM_AGAIN_S


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(RankEnvironment(0, 0, 1, 1, 0, "n0", PhaseDir(tmp_path), "cpu", 60.0), None)


def events(rank: Rank) -> Events:
    assert rank._environment.phase_dir is not None
    return read_events(rank._environment.phase_dir.rank_events(0))


def test_each_step_is_marked_once(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is marked when it is reached, and again only if it lasts."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for step in (0, 0, 1, 1, 1, 2):
        rank.mark(step, 2)
    now[0] += PROGRAM_AGAIN_S
    rank.mark(2, 2)
    rank.mark(2, 2)
    steps = [(record["step"], record["steps"]) for record in events(rank).named("step")]
    assert steps == [(0, 2), (1, 2), (2, 2), (2, 2)]


def test_marks_print_nothing(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints its measurements; one line for each mark would hide them."""
    rank.mark(1, 2)
    rank.measured("pair", peer=3)
    assert capsys.readouterr().out == ""


def test_measurement_is_an_event(rank: Rank) -> None:
    """The event has the fields and the name of the measurement."""
    rank.measured("pair", peer=3, gb_per_s=12.5)
    record = events(rank).last("measured")
    assert record is not None
    assert (record["what"], record["peer"], record["gb_per_s"]) == ("pair", 3, 12.5)


def test_metrics_are_checked_by_name(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics are recorded and printed with their units; an unknown name is refused."""
    rank.metrics(busbw_gb_per_s=12.5)
    record = events(rank).last("metrics")
    assert record is not None and record["values"] == {"busbw_gb_per_s": 12.5}
    assert capsys.readouterr().out == "busbw_gb_per_s 12.5 GB/s\n"
    with pytest.raises(RankMisuse, match=r"unknown metrics \['bandwidth'\]; expected steps_per_s"):
        rank.metrics(bandwidth=12.5)
