"""Measuring how long a process was stopped; a busy process was not stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_clustersmoke.node import lost_time
from pytest_clustersmoke.node.lost_time import SuspensionClock
from tests.support.waiting import wait_for

COUNTS = """
import sys
from pytest_clustersmoke.node import lost_time
lost_time.PAUSED_S = 2.0
counting = lost_time.SuspensionClock()
for line in sys.stdin:
    print(counting.seconds(), flush=True)
counting.close()
"""
STOPPED_S = 3.5


def test_stopped_time_is_measured() -> None:
    """It counts at once after SIGCONT, before the thread has run again, and only once."""
    command = [sys.executable, "-c", COUNTS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin and process.stdout

        def ask() -> float:
            assert process.stdin and process.stdout
            process.stdin.write("now\n")
            return float(process.stdout.readline())

        assert ask() == 0.0
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        began = time.monotonic()
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        first = ask()
        assert (
            STOPPED_S - lost_time.BEAT_S - 0.1 < first < time.monotonic() - began + lost_time.BEAT_S
        )
        assert ask() == ask() == first
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.parametrize("look", [1, 2, 3, 4])
def test_stop_counts_whatever_the_thread_was_at(look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it had just looked at the clock."""

    class Clock:
        """It stands, but for a stop of 100 s right after one of the looks at it."""

        now, looks_left = 1000.0, 1 + look  # the first one is not the thread's

        def monotonic(self) -> float:
            seen = self.now
            self.looks_left -= 1
            self.now += 100.0 if self.looks_left == 0 else 0.0
            return seen

    clock = Clock()
    monkeypatch.setattr(lost_time, "BEAT_S", 0.01)
    monkeypatch.setattr(lost_time, "time", clock)
    counting = SuspensionClock()
    wait_for("the stop", lambda: clock.now > 1000.0, poll_s=0.01)
    counting.close()
    assert counting.seconds() == pytest.approx(100.0 - lost_time.BEAT_S)


def test_waiting_process_was_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, for example for a file system, does not delay the measuring thread: it beats, and
    what is waited for, here a process, ends at its fifth beat."""
    monkeypatch.setattr(lost_time, "BEAT_S", 0.01)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:

        class Beats(SuspensionClock):
            beats = 0

            def seconds(self) -> float:
                self.beats += 1
                if self.beats == 5 and child.stdin is not None:
                    child.stdin.close()
                return super().seconds()

        counting = Beats()
        assert child.wait(60) == 0 and counting.beats >= 5
        assert counting.seconds() == 0.0
        counting.close()
