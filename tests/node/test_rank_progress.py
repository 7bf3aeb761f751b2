"""Progress, death and stall of ranks, from their events; hostile lines are ignored."""

from __future__ import annotations

import json
import math
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


def watch_rank(folder: Path, *records: Any) -> RankWatch:
    """A watch over one rank that has written these events; a string is a raw line."""
    job = make_job(folder)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    text = "".join(line + "\n" for line in lines)
    job.dir.rank_events(0).write_bytes(text.encode("latin-1"))
    watch = RankWatch(job)
    watch.read()
    return watch


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:60])
def test_malformed_line_is_ignored(tmp_path: Path, line: str) -> None:
    """The events around it count."""
    watch = watch_rank(tmp_path, THIS, TRAIN, {"event": "step", "step": 1, "steps": 3}, line)
    assert watch.trouble() is None
    assert watch.live() == [(0, THIS["pid"], THIS["pid_started"])]
    (state,) = watch.states()
    assert (state["stage"], state["step"], state["done"]) == ("train", 1, False)


def test_rank_without_a_known_process_is_neither_alive_nor_dead(tmp_path: Path) -> None:
    """If `start` names no process, only the limit of its stage applies."""
    watch = watch_rank(tmp_path, HOSTILE[0], TRAIN)
    assert watch.live() == [] and watch.trouble() is None
    assert watch.states()[0]["started"] is False


def test_stranger_named_by_a_start_is_not_the_rank(tmp_path: Path) -> None:
    """A process that runs, but that the node did not start, is recorded as such; it is not watched,
    and not ended with the ranks."""
    pid = os.getppid()
    start = {"event": "start", "pid": pid, "pid_started": process_tree.started_at(pid)}
    watch = watch_rank(tmp_path, start, TRAIN)
    assert [(process["pid"], process["is_own"]) for process in watch.processes()] == [(pid, False)]
    assert watch.live() == [] and watch.trouble() is None


def test_pid_of_another_namespace_is_not_looked_up(tmp_path: Path) -> None:
    """A rank in a container may have any pid: only the limit of its stage applies."""
    watch = watch_rank(tmp_path, {**THIS, "pid_started": 1.0, "namespaces": "pid:[1] -"}, TRAIN)
    assert watch.processes() == [] and watch.live() == [] and watch.trouble() is None


class Silent:
    """Tasks that live and never say how their ranks ended."""

    def exit_code(self, *_: Any) -> None:
        return None

    def will_report(self, rank: int) -> bool:
        return True


def test_exit_status_is_not_awaited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is stopped must not keep its node from ending the phase."""
    monkeypatch.setattr(rank_progress, "REPORT_S", 0.1)
    job = make_job(tmp_path)
    job.dir.rank_events(0).write_text(json.dumps(THIS | {"pid_started": 1.0}) + "\n")
    agent: Any = Silent()
    watch = RankWatch(job, agent=agent)
    watch.read()
    watch.trouble()
    assert watch.has_dead_rank()
    watch.await_exit_codes()
    assert watch.states()[0]["exit_code"] is None


class Numbering:
    """A launcher that numbers ranks late."""

    def __init__(self) -> None:
        self.numbers: dict[int, Any] = {}

    def ranks(self) -> dict[int, Any]:
        return self.numbers

    def pids(self) -> set[int]:
        return {1}

    def exit_code(self, *_: Any) -> None:
        return None


def test_ranks_have_the_numbers_that_their_launcher_gave(tmp_path: Path) -> None:
    """In torchrun's own store the first node may get the last ranks; before that, files of the
    others' ranks are not read as this node's."""
    job = make_job(tmp_path, nodes=2, ranks_per_node=1, launcher="torchrun-c10d")
    job.dir.rank_events(0).write_text(json.dumps({"event": "error", "type": "Other"}) + "\n")
    job.dir.rank_events(1).write_text(json.dumps(THIS) + "\n")
    agent: Any = Numbering()
    watch = RankWatch(job, agent=agent)
    watch.read()
    assert watch.trouble() is None and watch.live() == []
    agent.numbers = {1: None}
    watch.read()
    assert watch.trouble() is None and [rank for rank, _, _ in watch.live()] == [1]


@pytest.mark.parametrize(("starts", "pids"), [(1, {1, os.getpid()}), (2, {os.getpid()})])
def test_what_starts_the_ranks_counts_until_all_have_reported(
    tmp_path: Path, starts: int, pids: set[int]
) -> None:
    job = make_job(tmp_path, nodes=1, ranks_per_node=2)
    for rank in range(starts):
        job.dir.rank_events(rank).write_text(json.dumps(THIS) + "\n")
    agent: Any = Numbering()
    watch = RankWatch(job, agent=agent)
    watch.read()
    assert watch.working_pids() == pids


def test_nodes_that_never_meet_have_stalled(tmp_path: Path) -> None:
    """torchrun starts no rank then, so none is named."""
    limits = {"init": 0.0}
    job = make_job(tmp_path, nodes=2, launcher="torchrun-c10d", stage_limits_s=limits)
    agent: Any = Numbering()
    trouble = RankWatch(job, agent=agent).trouble()
    assert trouble is not None and (trouble.reason, trouble.rank) == ("stalled", None)
    assert "the nodes have not found each other in torchrun's store" in trouble.why


def test_rank_that_hangs_in_interpreter_exit_has_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that still runs past the limit after `done` is reported."""
    watch = watch_rank(tmp_path, THIS, TRAIN, {"event": "done"})
    assert watch.trouble() is None
    monkeypatch.setattr(rank_progress, "EXIT_LIMIT_S", -1.0)
    trouble = watch.trouble()
    assert trouble is not None
    assert (trouble.reason, trouble.rank) == ("stalled", 0)
    assert "still has not exited" in trouble.why


def test_rank_that_ended_after_done_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks may take as long as they need."""
    monkeypatch.setattr(rank_progress, "EXIT_LIMIT_S", -1.0)
    ended = {**THIS, "pid_started": 1.0}  # another process has that pid now
    assert watch_rank(tmp_path, ended, {"event": "done"}).trouble() is None


def test_ranks_that_torchrun_ends_after_the_first_count_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks that have ended, the first one died, and is named."""
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


@pytest.mark.parametrize(
    ("marks", "where"), [(0, "stage train without"), (1, "stage train after step 4 or later")]
)
def test_rank_that_ended_may_have_gone_on_after_its_last_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: int, where: str
) -> None:
    """Not every step is marked, so the last mark is a lower bound."""
    monkeypatch.setattr(rank_progress, "READ_AGAIN_S", 0.0)
    ended = {"event": "start", "pid": 1, "pid_started": 1.0}
    step = {"event": "step", "step": 4, "steps": 9}
    trouble = watch_rank(tmp_path, ended, TRAIN, *[step] * marks).trouble()
    assert trouble is not None and f"ended in {where}" in trouble.why


@pytest.mark.parametrize(("marks", "limit"), [(0, "first_step"), (1, "train_step")])
def test_second_pass_has_the_limits_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: int, limit: str
) -> None:
    """Its marks are events of their own, so that no reader takes them for the timed pass."""
    limits = {"first_step": 50.0, "train_step": 20.0, "twin": 1.0}
    events: list[dict[str, Any]] = [{"event": "stage", "name": "twin", "state": "begin"}]
    events += [{"event": "twin_step", "step": 7, "steps": 9}] * marks
    watch = watch_rank(tmp_path / "again", THIS, *events)
    watch._limits = limits
    assert watch.trouble() is None
    now = time.monotonic()
    clock = "pytest_clustersmoke.node.rank_progress.time.monotonic"
    monkeypatch.setattr(clock, lambda: now + watch._limits[limit] + 1)
    trouble = watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"
    assert ("stage twin, after step 7 of 9" in trouble.why) is (marks == 1)


@pytest.mark.parametrize(("ends", "is_stalled"), [(False, False), (True, True)])
def test_writing_a_trace_may_take_longer_than_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool, is_stalled: bool
) -> None:
    """Also on the ranks that wait for it; the next step has its own limit again."""
    step = {"event": "step", "step": 6, "steps": 9}
    writes = [{"event": "trace_write", "state": state} for state in ("begin", "end")[: 1 + ends]]
    watch = watch_rank(tmp_path, THIS, TRAIN, step, writes[0], {"event": "trace"}, *writes[1:])
    watch._timeout_at = math.inf
    now = time.monotonic()
    clock = "pytest_clustersmoke.node.rank_progress.time.monotonic"
    monkeypatch.setattr(clock, lambda: now + watch._limits["train_step"] + 1)
    assert (watch.trouble() is not None) is is_stalled
    monkeypatch.setattr(clock, lambda: now + rank_progress.DEFAULT_LIMIT_S + 1)
    trouble = watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"


class StoppedJob:
    """A watch over a training rank; a test sets the clock, and how long the job was stopped or
    waited for a CPU."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.stopped_s, self.queued_s = time.monotonic(), 0.0, 0.0
        clock = "pytest_clustersmoke.node.rank_progress.time.monotonic"
        monkeypatch.setattr(clock, lambda: self.now)
        job = watch_rank(folder, THIS, TRAIN, {"event": "step", "step": 1, "steps": 3})._job
        self.limit_s = float(job.spec["stage_limits_s"]["train_step"])
        self.watch = RankWatch(job, lambda: self.stopped_s, None, lambda: self.queued_s)


def test_time_of_a_stopped_job_is_not_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each limit is extended by that time; a rank that hangs afterwards has stalled."""
    job = StoppedJob(tmp_path, monkeypatch)
    job.watch.read()
    job.now += 100_000.0  # beyond every limit, of a stage and of the phase
    job.stopped_s = 100_000.0
    assert job.watch.trouble() is None and job.watch.paused_s == 100_000.0
    job.now += job.limit_s - 1
    assert job.watch.trouble() is None
    job.now += 2
    trouble = job.watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"


def test_progress_after_the_stop_restarts_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next limit begins with that progress; the stop does not extend it."""
    job = StoppedJob(tmp_path, monkeypatch)
    job.now += 7200
    job.watch.read()
    job.stopped_s = 7200.0
    assert job.watch.trouble() is None
    job.now += job.limit_s + 1
    trouble = job.watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"


def test_rank_that_waits_for_a_cpu_has_not_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a healthy import takes minutes. Nothing extends the limit of the phase,
    which the scheduler has too."""
    job = StoppedJob(tmp_path, monkeypatch)
    ends_at, job.watch._timeout_at = job.watch._timeout_at, math.inf
    job.watch.read()
    for _ in range(3):
        job.now += job.limit_s
        job.queued_s += job.limit_s - 1
        assert job.watch.trouble() is None
    job.now += job.limit_s
    trouble = job.watch.trouble()
    assert trouble is not None and trouble.reason == "stalled"
    job.watch._timeout_at = ends_at
    job.queued_s += job.now
    trouble = job.watch.trouble()
    assert trouble is not None and trouble.reason == "timeout"
    assert job.watch.paused_s == 0
