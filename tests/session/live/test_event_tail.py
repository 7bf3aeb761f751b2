"""The progress of a rank, from a file of hostile text on a slow file system."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter
from pytest_clustersmoke.node.lost_time import read_waited_s
from pytest_clustersmoke.session.live import event_tail as module
from pytest_clustersmoke.session.live.board import PhaseState
from pytest_clustersmoke.session.live.event_tail import EventTail, EventTails, Mark

JOB = "run1/small"


@pytest.fixture
def events(tmp_path: Path) -> EventWriter:
    writer = EventWriter(tmp_path / "0.jsonl")
    writer.write("start", schema=SCHEMA, job=JOB, rank=0)
    return writer


def marked(path: Path) -> Mark:
    tail = EventTail(path, JOB)
    tail.read()
    return tail.mark


def test_stage_and_steps_are_followed(events: EventWriter, tmp_path: Path) -> None:
    """The stage until the first step, then the last step with its figures, then the next stage."""
    tail = EventTail(tmp_path / "0.jsonl", JOB)
    tail.read()
    assert tail.mark == Mark("init")
    events.write("stage", name="train", state="begin")
    tail.read()
    assert tail.mark == Mark("train")
    for step in (1, 2):
        events.write("step", step=step, steps=9, loss=1.5 / step, steps_per_s=2.0)
    tail.read()
    assert tail.mark == Mark("train", 2, 9, 0.75, 2.0)
    events.write("stage", name="train", state="end", seconds=1)
    tail.read()
    assert tail.mark.step == 2
    events.write("stage", name="checkpoint", state="begin")
    tail.read()
    assert tail.mark == Mark("checkpoint")


def test_half_written_line_is_read_once_complete(tmp_path: Path, events: EventWriter) -> None:
    """An incomplete line is left for the next read."""
    path = tmp_path / "0.jsonl"
    tail = EventTail(path, JOB)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    tail.read()
    assert tail.mark == Mark()
    path.write_bytes(whole)
    tail.read()
    assert tail.mark == Mark("init")


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 0, "steps": 9},
        {"step": 10, "steps": 9},
        {"step": True, "steps": 9},
        {"step": 1.0, "steps": 9},
        {"step": "1", "steps": 9},
        {"step": 10**4000, "steps": 10**4000},
        {},
    ],
)
def test_impossible_step_is_ignored(
    events: EventWriter, tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Numbers that no rank of ours writes are ignored."""
    events.write("step", **fields)
    assert marked(tmp_path / "0.jsonl") == Mark("init")


def test_only_a_loss_may_be_not_finite(events: EventWriter, tmp_path: Path) -> None:
    """A rate must be finite; text is neither."""
    events.write("step", step=1, steps=2, loss=float("nan"), steps_per_s=float("inf"))
    mark = marked(tmp_path / "0.jsonl")
    assert mark.loss != mark.loss and mark.steps_per_s is None
    events.write("step", step=2, steps=2, loss="\x1b[2J", steps_per_s=[1])
    assert marked(tmp_path / "0.jsonl") == Mark("init", 2, 2)


def test_stage_names_are_sanitised_and_short(events: EventWriter, tmp_path: Path) -> None:
    """A control character or an endless name never reaches the terminal."""
    events.write("stage", name="a\x1b[2J\n" + "b" * 10_000, state="begin")
    stage = marked(tmp_path / "0.jsonl").stage
    assert stage.isprintable() and len(stage) <= module.MAX_STAGE


@pytest.mark.parametrize(
    "start", [{"schema": 99}, {"job": "run0/small"}, {"rank": 1}], ids=["schema", "job", "rank"]
)
def test_file_of_another_job_is_ignored(tmp_path: Path, start: dict[str, Any]) -> None:
    """A file whose start event names another schema, job or rank is ignored."""
    writer = EventWriter(tmp_path / "0.jsonl")
    writer.write("start", **{"schema": SCHEMA, "job": JOB, "rank": 0, **start})
    writer.write("step", step=1, steps=2)
    assert marked(tmp_path / "0.jsonl") == Mark()


def test_end_of_a_large_file_is_read(
    events: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was written since the last read, only the end is read."""
    path = tmp_path / "0.jsonl"
    for step in range(1, 3001):
        events.write("step", step=step, steps=5000)
    events.write("step_times", seconds=[0.5] * 100_000)  # longer than what is read at a time
    events.write("step", step=3001, steps=5000)
    sizes: list[int] = []
    pread = os.pread

    def note_and_read(descriptor: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", note_and_read)
    assert marked(path).step == 3001
    assert sizes == [module.READ_BYTES] and path.stat().st_size > 10 * module.READ_BYTES


def test_pipe_or_directory_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe, a directory or a missing file gives no progress, without waiting; for a core this
    process may wait."""
    os.mkfifo(tmp_path / "pipe")
    begun, waited_s = time.monotonic(), read_waited_s(os.getpid())
    for name in ("pipe", "", "absent"):
        assert marked(tmp_path / name) == Mark()
    waited_s = read_waited_s(os.getpid()) - waited_s
    assert time.monotonic() - begun - waited_s < 5


class Clock:
    """A monotonic clock that a test moves, and a slow file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow_s: float = 0.0) -> None:
        self.now, self.reads = 1000.0, [0.0]
        self.slow_s = slow_s
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(EventTail, "read", lambda tail: self._read())
        self.reads.clear()

    def _read(self) -> None:
        self.reads.append(self.now)
        self.now += self.slow_s


def test_each_file_is_read_once_a_second_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file per call, and each at most once a second."""
    clock = Clock(monkeypatch)
    tails = EventTails(RunDir(tmp_path))
    states = [PhaseState("a", "running"), PhaseState("b", "running"), PhaseState("c", "pending")]
    for _ in range(50):  # ten seconds
        before = len(clock.reads)
        assert set(tails.read_next(states)) == {"a", "b"}
        assert len(clock.reads) - before <= 1
        clock.now += 0.2
    assert 18 <= len(clock.reads) <= 20


def test_slow_file_system_is_read_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a read takes a second, reading takes at most a twentieth of the time."""
    clock = Clock(monkeypatch, slow_s=1.0)
    tails = EventTails(RunDir(tmp_path))
    while clock.now < 1200:
        tails.read_next([PhaseState("a", "running"), PhaseState("b", "running")])
        clock.now += 0.2
    assert 6 <= len(clock.reads) <= 12


def test_only_running_phases_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of waiting and finished phases do not change."""
    clock = Clock(monkeypatch)
    assert EventTails(RunDir(tmp_path)).read_next([PhaseState("a"), PhaseState("b", "done")]) == {}
    assert clock.reads == []
