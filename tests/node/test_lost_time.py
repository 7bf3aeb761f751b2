"""Measuring how long a process was stopped; a busy process was not stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.node import lost_time
from pytest_clustersmoke.node.lost_time import SuspensionClock
from tests.support.waiting import PATIENCE_S, wait_for

COUNTS = """
import sys
from pytest_clustersmoke.node import lost_time
lost_time.PAUSED_S = 0.5
counting = lost_time.SuspensionClock()
for line in sys.stdin:
    print(counting.seconds(), flush=True)
counting.close()
"""
STOPPED_S = 2.5


class Clock:
    """Monotonic time, which passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reads = 1000.0, 0
        self.at_read: Callable[[int], None] = lambda number: None
        monkeypatch.setattr(lost_time, "time", SimpleNamespace(monotonic=self.monotonic))

    def monotonic(self) -> float:
        self.reads += 1
        self.at_read(self.reads)
        return self.now


def test_stopped_process_counts_at_once() -> None:
    """After SIGCONT its clock has gone on: it need not have measured again before it is asked."""
    command, began = [sys.executable, "-c", COUNTS], time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin and process.stdout

        def ask() -> float:
            assert process.stdin and process.stdout
            process.stdin.write("now\n")
            return float(process.stdout.readline())

        before = ask()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        counted = ask() - before
        assert STOPPED_S - lost_time.BEAT_S - 0.1 < counted < time.monotonic() - began
        process.stdin.close()
        assert process.wait() == 0


def test_stopped_time_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the thread has run again or not: less the beat that was due meanwhile."""
    clock = Clock(monkeypatch)
    counting = SuspensionClock()
    assert counting.seconds() == 0.0
    clock.now += lost_time.PAUSED_S
    assert counting.seconds() == 0.0  # as late as load alone makes a beat
    counting.close()
    counting = SuspensionClock()
    clock.now += lost_time.PAUSED_S + 60.0
    first = counting.seconds()
    assert first == pytest.approx(lost_time.PAUSED_S + 60.0 - lost_time.BEAT_S)
    assert counting.seconds() == counting.seconds() == first
    counting.close()
    assert counting.seconds() == first


@pytest.mark.parametrize("stopped_at", range(2, 6))
def test_stop_at_any_moment_of_a_beat_counts(
    monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """Also one just before the thread looks at the clock, or just after."""
    clock, stopped_s = Clock(monkeypatch), lost_time.PAUSED_S + 60.0
    monkeypatch.setattr(lost_time, "BEAT_S", 0.01)

    def stop(number: int) -> None:
        clock.now += stopped_s if number == stopped_at else 0.0

    clock.at_read = stop
    counting = SuspensionClock()
    wait_for("the beats after it", lambda: clock.reads > stopped_at)
    assert counting.seconds() == pytest.approx(stopped_s - lost_time.BEAT_S)
    counting.close()


def test_waiting_process_was_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, for example for a file system, does not delay the measuring thread: it beats, and
    what is waited for, here a process, ends at its fifth beat."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(lost_time, "BEAT_S", 0.01)
    beats: list[int] = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:

        def beat(number: int) -> None:
            if threading.current_thread() is threading.main_thread():
                return
            clock.now += lost_time.PAUSED_S - 1.0  # since the beat before
            beats.append(number)
            if len(beats) == 5 and child.stdin is not None:
                child.stdin.close()

        clock.at_read = beat
        counting = SuspensionClock()
        assert child.wait(PATIENCE_S) == 0 and len(beats) >= 5
        assert counting.seconds() == 0.0
        counting.close()
