"""Signals during a run, and while its report is written."""

from __future__ import annotations

import os
import signal

import pytest

from pytest_clustersmoke.interrupts import Interrupts
from pytest_clustersmoke.report.model import RunRecord
from pytest_clustersmoke.report.record import Run, make_record

from .harness import Suite, properties

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_cancels_and_interrupts(number: int) -> None:
    """Later ones are ignored, and afterwards the handlers are those of before."""
    calls: list[int] = []
    before = signal.getsignal(number)
    held = Interrupts(lambda: calls.append(1))
    held.catch()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    finally:
        held.release()
    assert calls == [1] and signal.getsignal(number) is before


def test_at_the_end_one_signal_is_let_pass() -> None:
    """What is left is the report; only who insists does without it."""
    held = Interrupts(lambda: None)
    held.catch()
    try:
        held.ending()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        held.release()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_the_report_is_written_loses_nothing(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """All was judged: report.json, JUnit and the exit status say the same verdict."""

    def struck(run: Run) -> RunRecord:
        os.kill(os.getpid(), number)
        return make_record(run)

    monkeypatch.setattr("pytest_clustersmoke.report.finish.make_record", struck)
    suite.phase()
    result = suite.run()
    assert result.ret == 0 and result.outlines[-1] == "FIT: 1 of 1 phases"
    assert suite.record()["verdict"] == "FIT" and not suite.record()["interrupted"]
    assert properties(suite.report / "junit.xml")
