"""Processes, known by pid and start time, and ended without taking anybody's exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.local_backend import _Job, _ranks
from pytest_clustersmoke.node import process_tree

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"


@pytest.fixture
def deaf() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not hear TERM."""
    command = [sys.executable, "-c", DEAF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_a_number_that_can_be_no_pid_is_no_process(pid: int) -> None:
    """Looking for it finds nothing, and sending it a signal does nothing."""
    assert process_tree.find(pid, 1.0) is None
    process_tree.send(pid, 1.0, signal.SIGTERM)


@pytest.mark.parametrize(
    ("pid", "started"),
    [(0, 1.0), (-5, 1.0), (True, 1.0), ("5", 1.0), (5, float("nan")), (5, "nan"), (5, True)],
)
def test_a_rank_whose_start_is_garbled_is_unknown_to_the_controller(
    tmp_path: Path, pid: Any, started: Any
) -> None:
    """Cancelling passes over it, and over no other rank."""
    directory = PhaseDir(tmp_path)
    this = (os.getpid(), process_tree.started_at(os.getpid()))
    for rank, (its_pid, its_start) in enumerate([(pid, started), this]):
        writer = EventWriter(directory.rank_events(rank))
        writer.write("start", pid=its_pid, pid_started=its_start)
        writer.close()
    job = _Job(nodes=[], directory=directory, world_size=2, submitted=0.0, gpus=[])
    assert [process.pid for process in _ranks(job)] == [this[0]]


def test_what_is_ended_keeps_its_exit_status(deaf: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL; whoever started the process still learns how it ended."""
    assert process_tree.end(process_tree.tree(deaf.pid), grace_s=0.05) == []
    assert deaf.wait() == -signal.SIGKILL


def test_descendants_leave_out_the_children_that_were_there_before(
    deaf: subprocess.Popen[bytes],
) -> None:
    """A child is found once started, and not where it is among those to be left alone."""
    before = process_tree.children()
    assert deaf.pid in {process.pid for process in process_tree.descendants()}
    assert deaf.pid not in {process.pid for process in process_tree.descendants(besides=before)}


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", -9)])
def test_how_a_process_ended_is_known_before_it_is_reaped(end: str, code: int) -> None:
    """Its exit status or its signal, while it runs nothing; its parent still learns of it."""
    with subprocess.Popen(["sh", "-c", f"read go; {end}"], stdin=subprocess.PIPE) as process:
        started = process_tree.started_at(process.pid)
        assert process_tree.exit_code(process.pid, started) is None
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_tree.exit_code(process.pid, started) == code
        assert process_tree.exit_code(process.pid, started - 60) is None
        assert process.wait() == code
    assert process_tree.exit_code(process.pid, started) is None


def test_a_process_stays_the_same_where_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose clock is put right while a job runs has lost no rank."""
    this = (os.getpid(), process_tree.started_at(os.getpid()))
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
    assert process_tree.alive(*this)
    assert not process_tree.alive(this[0], this[1] - 0.01)
