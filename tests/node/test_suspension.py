"""A process that was stopped knows for how long; a busy one was not stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_clustersmoke.node import suspension
from pytest_clustersmoke.node.suspension import Pauses

COUNTS = """
import sys
from pytest_clustersmoke.node import suspension
suspension.PAUSED_S = 2.0
counting = suspension.Pauses()
for line in sys.stdin:
    print(counting.seconds(), flush=True)
counting.close()
"""
STOPPED_S = 3.5


def test_a_process_knows_for_how_long_it_was_stopped() -> None:
    """As soon as it goes on, and once: the thread that looks has not run since."""
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
            STOPPED_S - suspension.BEAT_S - 0.1
            < first
            < time.monotonic() - began + suspension.BEAT_S
        )
        assert ask() == ask() == first
        process.stdin.close()
        assert process.wait() == 0


def test_who_waits_for_a_file_system_was_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the thread that looks counts, and it goes on."""
    monkeypatch.setattr(suspension, "PAUSED_S", 2.0)
    counting = Pauses()
    subprocess.run(["sleep", "3"], check=True)
    assert counting.seconds() == 0.0
    counting.close()
