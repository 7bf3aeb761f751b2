"""Signals during a run, and while its report is written."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report.record_builder import FinishedRun, make_record
from pytest_clustersmoke.session.interrupts import LET_PASS, Interrupts
from tests.support.harness import Suite, properties, pytest_command
from tests.support.waiting import wait_for

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def restore_sighup() -> Iterator[None]:
    """SIGHUP may be ignored where the tests run, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", NUMBERS)
def test_first_signal_cancels_and_interrupts(number: int) -> None:
    """Later ones make haste and interrupt nothing, and the old handlers are restored."""
    calls: list[str] = []
    before = signal.getsignal(number)
    interrupts = Interrupts()
    interrupts.catch(lambda: calls.append("cancel"), lambda: calls.append("hurry"))
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)
    finally:
        interrupts.release()
    assert calls == ["cancel", "hurry"] and signal.getsignal(number) is before


def test_lost_terminal_is_ignored_under_nohup() -> None:
    """An ignored SIGHUP stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    try:
        interrupts.catch(lambda: pytest.fail("cancelled"), lambda: None)
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.release()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_first_signals_during_the_report_are_ignored() -> None:
    """Only one more signal ends the process without its report."""
    interrupts = Interrupts()
    interrupts.catch(lambda: None, lambda: None)
    try:
        interrupts.ending()
        for _ in range(LET_PASS):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        interrupts.release()


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_during_the_report_loses_nothing(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """report.json, JUnit and the exit status have the same verdict."""

    def make_interrupted(run: FinishedRun) -> RunRecord:
        os.kill(os.getpid(), number)
        return make_record(run)

    monkeypatch.setattr("pytest_clustersmoke.report.record_builder.make_record", make_interrupted)
    suite.phase()
    result = suite.run()
    assert result.ret == 0 and result.outlines[-1] == "FIT: 1 of 1 phases passed"
    assert suite.record()["verdict"] == "FIT" and not suite.record()["interrupted"]
    assert properties(suite.report / "junit.xml")


def test_lost_terminal_ends_the_run(suite: Suite) -> None:
    """The job is cancelled, and the report is written."""
    suite.phase(args={"wait_for": str(suite.path / "go")})
    pid, terminal = pty.fork()
    if pid == 0:  # the child, whose controlling terminal will close
        os.chdir(suite.path)
        os.execv(sys.executable, pytest_command())
    reader = threading.Thread(target=drain, args=[terminal, gone := threading.Event()])
    reader.start()
    try:
        wait_for("a rank", lambda: list(suite.shared.glob("*/phases/small/ranks/*.jsonl")))
    finally:
        gone.set()
        reader.join()
        os.close(terminal)
        os.waitpid(pid, 0)
        (suite.path / "go").touch()
    record = suite.record()
    assert record["interrupted"] and record["phases"][0]["outcome"] == "cancelled"


def drain(terminal: int, gone: threading.Event) -> None:
    while not gone.is_set():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)
