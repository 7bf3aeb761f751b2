"""Whether the controller of a run still lives."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence import locks
from pytest_clustersmoke.evidence.locks import (
    ControllerFence,
    ControllerLock,
    Superseded,
    describe_run,
    find_holder,
    seize_run,
    send_heartbeat,
)
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json, write_json
from tests.support.evidence import make_profile

RUN_ID = "20261101-020000-abcdef"
HOLD = """
import sys
from pathlib import Path
from pytest_clustersmoke.evidence.locks import ControllerLock
from pytest_clustersmoke.evidence.run_directory import RunDir
held = ControllerLock(RunDir(Path(sys.argv[1])))
held.announce({"phases_chosen": ["small"]}, Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(run: RunDir, report: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that controls the run."""
    command = [sys.executable, "-c", HOLD, str(run.root), str(report)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def lives(run: RunDir) -> bool:
    with seize_run(run) as dead:
        return not dead


def made(folder: Path, **changes: Any) -> RunDir:
    run = RunDir(folder / RUN_ID)
    write_json(run.run, {**describe_run(make_profile(folder), RUN_ID), **changes})
    return run


def test_a_controller_lives_until_its_process_ends(tmp_path: Path) -> None:
    """A run is alive while another process holds its lock, and dead once that process is killed."""
    run = made(tmp_path)
    with held_elsewhere(run, tmp_path / "report") as process:
        assert lives(run)
        process.kill()
        process.wait()
    assert not lives(run)


def test_process_that_took_a_run_over_has_its_lock_once_the_one_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a free lock says nothing of it, and its silence decides."""
    monkeypatch.setattr(locks, "LOOK_S", 0.05)
    run, report = made(tmp_path), tmp_path / "report"
    with held_elsewhere(run, report) as process:
        second = ControllerLock(run)
        second.attach()
        second.announce({}, report)
        second.renew()
        assert (read_json(run.run) or {})["locks"] is False
        process.kill()
        process.wait()
        assert lives(run)
        second.renew()
    for directory in (run, RunDir(report)):
        about = read_json(directory.run) or {}
        assert about["locks"] is True and about["pid"] == os.getpid()
    assert lives(run)
    second.release()
    assert not lives(run)


def test_lock_that_two_threads_renew_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch and the test that is judged both send beats: a lock that was taken twice would be
    held after its release. One that is not announced yet is not taken."""
    monkeypatch.setattr(locks, "LOOK_S", 0.05)
    run, report, acquire = made(tmp_path), tmp_path / "report", locks._acquire
    with held_elsewhere(run, report) as process:
        second = ControllerLock(run)
        process.kill()
        process.wait()
    second.renew()
    assert not lives(run)
    second.announce({}, report)
    other = threading.Thread(target=second.renew)

    def acquire_late(lock: Any) -> bool | None:
        if other.ident is None:
            other.start()
            other.join(timeout=0.2)  # it must wait for this one
        return acquire(lock)

    monkeypatch.setattr(locks, "_acquire", acquire_late)
    second.renew()
    other.join()
    assert lives(run)
    second.release()
    assert not lives(run)


def look(run: RunDir) -> int:
    """Look at a run's lock as another command does; returns the descriptor that it looks by."""
    descriptor = os.open(run.lock, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def test_look_at_a_run_does_not_keep_a_controller_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clustersmoke status` looks just as the controller starts: it waits for that moment to
    pass."""
    run = made(tmp_path)
    ControllerLock(run).release()
    looking = [look(run)]

    def pause(seconds: float) -> None:
        if looking:  # the controller has found the lock held
            os.close(looking.pop())

    monkeypatch.setattr("pytest_clustersmoke.evidence.locks.time.sleep", pause)
    held = ControllerLock(run)
    held.announce({}, tmp_path / "report")
    assert not looking
    assert (read_json(run.run) or {})["locks"] is True
    held.release()


def test_two_looks_at_a_dead_run_do_not_take_each_other_for_its_controller(tmp_path: Path) -> None:
    """Nor does a look create the lock of a run that never had one."""
    run = made(tmp_path, locks=True)
    assert find_holder(run, 0.0) == "" and not run.lock.exists()
    ControllerLock(run).release()
    other = look(run)
    assert find_holder(run, 0.0) == ""
    os.close(other)
    with held_elsewhere(run, tmp_path / "report"):
        assert find_holder(run, 0.0).startswith("pid ")


def test_successor_is_seen_although_nfs_remembers_that_its_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a file that is missing is remembered for up to a minute; a directory that is opened
    is asked for at the server."""
    run = made(tmp_path)
    fence = ControllerFence(run)
    fence.check()
    ControllerFence(run)
    stat = os.stat

    def stat_by_memory(path: Any, *args: Any, **values: Any) -> os.stat_result:
        if Path(path) == fence.successor:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return stat(path, *args, **values)

    monkeypatch.setattr(os, "stat", stat_by_memory)
    assert not fence.successor.exists()
    with pytest.raises(Superseded, match=f"pid {os.getpid()} on .* has taken this run over"):
        fence.check()
    assert fence.is_superseded


def test_directory_that_cannot_be_listed_may_have_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether another controller has the run is unclear, so that this one touches no job; it is not
    known to have one, which would write the report."""
    fence = ControllerFence(made(tmp_path))

    def fail(path: Path) -> list[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(Superseded, match="cannot tell who controls this run: "):
        fence.check()
    assert not fence.is_superseded


def test_report_directory_points_to_the_run(tmp_path: Path) -> None:
    """Both files have the selection; the report's also names the evidence."""
    run = made(tmp_path)
    held = ControllerLock(run)
    held.announce({"phases_chosen": ["small"], "selection": "small"}, tmp_path / "report")
    held.release()
    content = read_json(tmp_path / "report" / "run.json")
    assert content is not None and content["evidence"] == str(run.root)
    assert content["phases_chosen"] == ["small"] and content["locks"] is True
    assert (tmp_path / "report" / "run.json").stat().st_mode & 0o777 == 0o644


def test_report_of_a_run_that_is_attached_is_no_report_of_it_any_more(tmp_path: Path) -> None:
    """Should the process that attached it be killed, the next command writes a new one."""
    run, report = made(tmp_path), tmp_path / "report"
    first = ControllerLock(run)
    first.announce({}, report)
    write_json(report / "report.json", {"run_id": RUN_ID})
    first.announce({}, report)
    first.release()
    assert (report / "report.json").exists()
    second = ControllerLock(run)
    second.attach()
    second.announce({}, report)
    second.release()
    assert not (report / "report.json").exists() and (report / "run.json").exists()


def test_only_one_command_seizes_a_dead_run(tmp_path: Path) -> None:
    """While one command reports a dead run, another leaves it alone."""
    run = made(tmp_path)
    held = ControllerLock(run)
    held.announce({}, tmp_path / "report")
    held.release()
    with seize_run(run) as dead:
        assert dead and lives(run)


@pytest.mark.parametrize(
    ("has_locks", "host", "silent_s", "alive"),
    [
        (True, "", 0, False),
        (True, "another", 60, True),
        (True, "another", locks.MAX_SILENCE_S + 60, False),
        (False, "", locks.MAX_SILENCE_S + 60, True),
        (False, "", locks.MAX_RUN_S + 60, False),
    ],
)
def test_heartbeat_decides_when_a_free_lock_proves_nothing(
    tmp_path: Path, has_locks: bool, host: str, silent_s: float, alive: bool
) -> None:
    """If locks hold on one host alone, or not at all, a run is dead after a long silence."""
    run = made(tmp_path)
    held = ControllerLock(run)
    held.about |= {"host": host} if host else {}
    held.announce({}, tmp_path / "report")
    held.release()
    write_json(run.run, {**held.about, "locks": has_locks})
    when = time.time() - silent_s
    os.utime(run.run, (when, when))
    assert lives(run) is alive


def test_heartbeat_touches_run_json(tmp_path: Path) -> None:
    """It touches run.json, and does nothing if that file is gone."""
    run = made(tmp_path)
    ControllerLock(run).release()
    os.utime(run.run, (0, 0))
    send_heartbeat(run)
    assert time.time() - run.run.stat().st_mtime < 60
    run.run.unlink()
    send_heartbeat(run)


def test_heartbeat_decides_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without flock (faked) a run counts as alive for as long as a job may run."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run = made(tmp_path)
    held = ControllerLock(run)
    held.announce({}, tmp_path / "report")
    held.release()
    assert (read_json(run.run) or {})["locks"] is False and lives(run)
    long_ago = time.time() - locks.MAX_RUN_S - 60
    os.utime(run.run, (long_ago, long_ago))
    assert not lives(run)
