"""How long ranks waited for a CPU: the kernel's count, and what of it counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.node.lost_time import LOOK_S, CpuQueue, read_waited_s
from tests.support import load, waiting
from tests.support.waiting import wait_for

SPIN = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


class Processes:
    """Made processes, and a clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waited = 100.0, dict[int, float]()
        monkeypatch.setattr("pytest_clustersmoke.node.lost_time.time.monotonic", lambda: self.now)
        self.queue = CpuQueue(lambda: list(self.waited), lambda pid: self.waited[pid])

    def pass_time(self, seconds: float, **waited: float) -> float:
        """The count after these seconds, in which processes waited so much more."""
        self.now += seconds
        for name, more_s in waited.items():
            pid = int(name.removeprefix("pid"))
            self.waited[pid] = self.waited.get(pid, 0.0) + more_s
        return self.queue.seconds()


def test_longest_wait_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes wait at the same time; one after the other, their waits add up."""
    processes = Processes(monkeypatch)
    assert processes.pass_time(10.0, pid1=8.0, pid2=9.0) == pytest.approx(9.0)
    assert processes.pass_time(10.0, pid1=7.0) == pytest.approx(16.0)
    assert processes.pass_time(10.0, pid3=6.0) == pytest.approx(22.0)


def test_no_more_than_the_time_that_passed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have waited before it was seen first, and a pid may be another process's."""
    processes = Processes(monkeypatch)
    assert processes.pass_time(10.0, pid1=500.0) == pytest.approx(10.0)
    processes.waited = {1: 3.0}
    assert processes.pass_time(10.0) == pytest.approx(10.0)
    assert processes.pass_time(LOOK_S / 2, pid1=LOOK_S / 2) == pytest.approx(10.0)


def test_process_that_sleeps_waits_for_no_cpu() -> None:
    """So a rank that hangs in a call is found in time, however busy the machine is."""
    command = [sys.executable, "-c", "print('there', flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        wait_for("the process to sleep", lambda: sleeps(process.pid))
        before = read_waited_s(process.pid)
        time.sleep(0.3)
        assert read_waited_s(process.pid) == before
        process.stdin.close()


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.skipif(not read_waited_s(os.getpid()), reason="the kernel counts no waits")
def test_processes_that_share_a_core_wait_for_it() -> None:
    """Two that compute on one core wait for each other."""
    core = str(min(os.sched_getaffinity(0)))
    command, env = [sys.executable, "-c", SPIN], {**os.environ, "CORE": core}
    both = [subprocess.Popen(command, env=env) for _ in range(2)]
    try:
        counts = [CpuQueue(partial(list, [process.pid])).seconds for process in both]
        wait_for("both to wait", lambda: all(count() > 0.1 for count in counts))
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_process_that_has_ended_waits_no_more() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert read_waited_s(process.pid) == 0.0


def test_bound_of_a_test_is_for_the_time_in_which_nothing_waited() -> None:
    """What the tests measure between two moments, of which each has a sample just before or after.
    Without the kernel's count all of it counts; a third does, where work waited all the time."""
    pressure = load.Pressure()
    assert pressure.own_s(10.0, 15.0) == 5.0
    pressure._samples = [(10.0, 3.0), (11.0, 3.0), (12.0, 3.8), (13.0, 3.8)]
    assert pressure.own_s(10.0, 11.0) == 1.0
    assert pressure.own_s(10.5, 13.5) == pytest.approx(3.0 - 0.8)
    pressure._samples = [(10.0, 3.0), (40.0, 63.0)]
    assert pressure.own_s(10.0, 40.0) == pytest.approx(10.0)


def test_wait_of_all_work_is_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count is a mean over the cores; where all wait, each second counts at least once."""
    monkeypatch.setattr(waiting, "PRESSURE", tmp_path / "cpu")
    assert waiting.read_pressure_s() == 0.0
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    line = "avg10=50.00 avg60=1.00 avg300=0.00 total="
    (tmp_path / "cpu").write_text(f"some {line}1500000\nfull {line}0\n")
    assert waiting.read_pressure_s() == 3.0


@pytest.mark.parametrize(("waited_s", "over_after_s"), [(0.0, 10.0), (8.0, 18.0), (1000.0, 30.0)])
def test_wait_is_longer_where_work_waits_for_a_core(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, over_after_s: float
) -> None:
    """By that time, and at most three times as long."""
    now = 100.0
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(waiting, "read_pressure_s", lambda: waited_s * (now > 100.0))
    patience = waiting.Patience(10.0)
    now += over_after_s
    assert not patience.is_over
    now += 0.1
    assert patience.is_over
