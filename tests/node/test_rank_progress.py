"""What the launcher makes of its ranks' events: progress, death, standstill; and hostile lines."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.node import process_tree, rank_progress
from pytest_clustersmoke.node.rank_progress import RankWatch
from tests.support.launched import make_job

THIS = {"event": "start", "pid": os.getpid(), "pid_started": process_tree.started_at(os.getpid())}
TRAIN = {"event": "stage", "name": "train", "state": "begin"}
HOSTILE = [
    '{"event": "start"}',
    '{"event": "start", "pid": 0, "pid_started": 1.0}',
    '{"event": "start", "pid": -1, "pid_started": 1.0}',
    '{"event": "start", "pid": true, "pid_started": 1.0}',
    '{"event": "start", "pid": "7", "pid_started": 1.0}',
    '{"event": "start", "pid": 1e999, "pid_started": 1.0}',
    '{"event": "start", "pid": [], "pid_started": {}}',
    '{"event": "start", "pid": 7, "pid_started": NaN}',
    '{"event": "start", "pid": 7, "pid_started": Infinity}',
    '{"event": "start", "pid": 7, "pid_started": null}',
    '{"event": "step", "step": NaN, "steps": 3}',
    '{"event": "step", "step": 1e999, "steps": 3}',
    '{"event": "step", "step": "x", "steps": 3}',
    '{"event": "step", "step": 2, "steps": null}',
    '{"event": "step", "step": -2, "steps": 3}',
    '{"event": "step"}',
    '{"event": []}',
    '{"event": {"event": "done"}}',
    "[" * 100_000,
    "1" * 5_000,
    "null",
    "\x00\xff",
]


def say(folder: Path, *records: Any) -> RankWatch:
    """A watch over one rank that has said this; texts are lines as they stand."""
    job = make_job(folder)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    text = "".join(line + "\n" for line in lines)
    job.dir.rank_events(0).write_bytes(text.encode("latin-1"))
    watch = RankWatch(job)
    watch.read()
    return watch


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:60])
def test_a_line_that_is_no_event_says_nothing(tmp_path: Path, line: str) -> None:
    """What a hostile line claims is ignored; the events around it count."""
    watch = say(tmp_path, THIS, TRAIN, {"event": "step", "step": 1, "steps": 3}, line)
    assert watch.trouble() is None
    assert watch.live() == [(0, THIS["pid"], THIS["pid_started"])]
    (state,) = watch.states()
    assert (state["stage"], state["step"], state["done"]) == ("train", 1, False)


def test_a_rank_without_a_known_process_is_neither_alive_nor_dead(tmp_path: Path) -> None:
    """A start that names no process leaves the rank to its stage's limit."""
    watch = say(tmp_path, HOSTILE[0], TRAIN)
    assert watch.live() == [] and watch.trouble() is None
    assert watch.states()[0]["started"] is False


def test_a_rank_that_hangs_in_interpreter_exit_has_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is still there past the limit after `done` is trouble, and told as that."""
    watch = say(tmp_path, THIS, TRAIN, {"event": "done"})
    assert watch.trouble() is None
    monkeypatch.setattr(rank_progress, "EXIT_LIMIT_S", -1.0)
    trouble = watch.trouble()
    assert trouble is not None
    assert (trouble.reason, trouble.rank) == ("stalled", 0)
    assert "still has not exited" in trouble.why


def test_a_rank_that_has_ended_after_done_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the other ranks take: it is done and gone."""
    monkeypatch.setattr(rank_progress, "EXIT_LIMIT_S", -1.0)
    ended = {**THIS, "pid_started": 1.0}  # the pid is somebody else's by now
    assert say(tmp_path, ended, {"event": "done"}).trouble() is None


def test_ranks_that_torchrun_ends_after_the_first_count_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks that have ended, the one that ended first is the one that died, and is named."""
    monkeypatch.setattr(rank_progress, "READ_AGAIN_S", 0.0)
    job = make_job(tmp_path, ranks_per_node=2)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        for rank, (pid, started) in enumerate(
            [(cat.pid, process_tree.started_at(cat.pid)), (1, 1.0)]
        ):
            start = {"event": "start", "pid": pid, "pid_started": started}
            job.dir.rank_events(rank).write_text(json.dumps(start) + "\n")
        watch = RankWatch(job)
        watch.read()
        trouble = watch.trouble()
    assert trouble is not None and (trouble.reason, trouble.rank) == ("rank_died", 1)
    assert [state["alive"] for state in watch.states()] == [True, False]
    assert [rank for rank, _, _ in watch.live()] == []


class Stopped:
    """A watch over a rank that trains; a test says what the clock is, and how long all stood."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stopped_s = time.monotonic(), 0.0
        clock = "pytest_clustersmoke.node.rank_progress.time.monotonic"
        monkeypatch.setattr(clock, lambda: self.now)
        job = say(folder, THIS, TRAIN, {"event": "step", "step": 1, "steps": 3})._job
        self.limit_s = float(job.spec["stage_limits_s"]["train_step"])
        self.watch = RankWatch(job, lambda: self.stopped_s)


def test_what_a_job_was_stopped_is_no_standstill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks have left what they had before, of each limit; who hangs then has hung."""
    one = Stopped(tmp_path, monkeypatch)
    one.watch.read()
    one.now += 100_000.0  # beyond every limit, of a stage and of the phase
    one.stopped_s = 100_000.0
    assert one.watch.trouble() is None and one.watch.paused_s == 100_000.0
    one.now += one.limit_s - 1
    assert one.watch.trouble() is None
    one.now += 2
    trouble = one.watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"


def test_a_rank_that_moved_behind_the_stop_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next limit begins when it moved, not as much later as the job was stopped."""
    one = Stopped(tmp_path, monkeypatch)
    one.now += 7200
    one.watch.read()
    one.stopped_s = 7200.0
    assert one.watch.trouble() is None
    one.now += one.limit_s + 1
    trouble = one.watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"
