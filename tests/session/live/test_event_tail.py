"""How far a rank is, from a file that is hostile text on a slow file system."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter
from pytest_clustersmoke.session.live import event_tail as module
from pytest_clustersmoke.session.live.board import PhaseState
from pytest_clustersmoke.session.live.event_tail import Mark, Tail, Tails

JOB = "run1/small"


@pytest.fixture
def events(tmp_path: Path) -> EventWriter:
    writer = EventWriter(tmp_path / "0.jsonl")
    writer.write("start", schema=SCHEMA, job=JOB, rank=0)
    return writer


def marked(path: Path) -> Mark:
    tail = Tail(path, JOB)
    tail.read()
    return tail.mark


def test_stage_then_steps(events: EventWriter, tmp_path: Path) -> None:
    """The stage until the first step, then the last step with its figures, then the next stage."""
    tail = Tail(tmp_path / "0.jsonl", JOB)
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


def test_a_line_half_written_is_read_when_it_is_whole(tmp_path: Path, events: EventWriter) -> None:
    """What has no end yet is left for the next look."""
    path = tmp_path / "0.jsonl"
    tail = Tail(path, JOB)
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
def test_a_step_that_is_none_says_nothing(
    events: EventWriter, tmp_path: Path, fields: dict[str, Any]
) -> None:
    """Numbers that no rank of ours writes are passed over."""
    events.write("step", **fields)
    assert marked(tmp_path / "0.jsonl") == Mark("init")


def test_figures_that_are_no_numbers(events: EventWriter, tmp_path: Path) -> None:
    """A rate must be finite; a loss that is not is told; text is neither."""
    events.write("step", step=1, steps=2, loss=float("nan"), steps_per_s=float("inf"))
    mark = marked(tmp_path / "0.jsonl")
    assert mark.loss != mark.loss and mark.steps_per_s is None
    events.write("step", step=2, steps=2, loss="\x1b[2J", steps_per_s=[1])
    assert marked(tmp_path / "0.jsonl") == Mark("init", 2, 2)


def test_names_of_stages_are_clean_and_short(events: EventWriter, tmp_path: Path) -> None:
    """No control character of a name reaches the terminal, nor a name without end."""
    events.write("stage", name="a\x1b[2J\n" + "b" * 10_000, state="begin")
    stage = marked(tmp_path / "0.jsonl").stage
    assert stage.isprintable() and len(stage) <= module.MAX_STAGE


@pytest.mark.parametrize(
    "start", [{"schema": 99}, {"job": "run0/small"}, {"rank": 1}], ids=["schema", "job", "rank"]
)
def test_another_jobs_file_tells_nothing(tmp_path: Path, start: dict[str, Any]) -> None:
    """A file whose start names another schema, job or rank does not count."""
    writer = EventWriter(tmp_path / "0.jsonl")
    writer.write("start", **{"schema": SCHEMA, "job": JOB, "rank": 0, **start})
    writer.write("step", step=1, steps=2)
    assert marked(tmp_path / "0.jsonl") == Mark()


def test_of_a_large_file_the_end_is_read(
    events: EventWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was written since the last look, a bounded part is read, and the last counts."""
    path = tmp_path / "0.jsonl"
    for step in range(1, 3001):
        events.write("step", step=step, steps=5000)
    events.write("step_times", seconds=[0.5] * 100_000)  # longer than what is read at a time
    events.write("step", step=3001, steps=5000)
    sizes: list[int] = []
    pread = os.pread

    def noted(descriptor: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", noted)
    assert marked(path).step == 3001
    assert sizes == [module.READ_BYTES] and path.stat().st_size > 10 * module.READ_BYTES


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe or a directory of that name, or nothing, tells nothing, at once."""
    os.mkfifo(tmp_path / "pipe")
    begun = time.monotonic()
    for name in ("pipe", "", "absent"):
        assert marked(tmp_path / name) == Mark()
    assert time.monotonic() - begun < 5


class Clock:
    """A monotonic clock that a test moves, and a file system that takes its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow_s: float = 0.0) -> None:
        self.now, self.reads = 1000.0, [0.0]
        self.slow_s = slow_s
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Tail, "read", lambda tail: self._read())
        self.reads.clear()

    def _read(self) -> None:
        self.reads.append(self.now)
        self.now += self.slow_s


def test_one_file_a_look_and_each_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only phases that run are read, one at a look, each at most once a second."""
    clock = Clock(monkeypatch)
    tails = Tails(RunDir(tmp_path))
    states = [PhaseState("a", "running"), PhaseState("b", "running"), PhaseState("c", "pending")]
    for _ in range(50):  # ten seconds
        before = len(clock.reads)
        assert set(tails.look(states)) == {"a", "b"}
        assert len(clock.reads) - before <= 1
        clock.now += 0.2
    assert 18 <= len(clock.reads) <= 20


def test_a_slow_file_system_is_asked_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a read takes a second, reading takes no more than a twentieth of the time."""
    clock = Clock(monkeypatch, slow_s=1.0)
    tails = Tails(RunDir(tmp_path))
    while clock.now < 1200:
        tails.look([PhaseState("a", "running"), PhaseState("b", "running")])
        clock.now += 0.2
    assert 6 <= len(clock.reads) <= 12


def test_nothing_runs_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither waiting phases nor finished ones have a file that changes."""
    clock = Clock(monkeypatch)
    assert Tails(RunDir(tmp_path)).look([PhaseState("a"), PhaseState("b", "done")]) == {}
    assert clock.reads == []
