"""A shared directory that hangs as a whole, as if its server were away."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE, RunningPytest, Suite

# Every call of pytest's into the directory hangs while the file `hung` is there. Times are short.
CONFTEST = """
import os, signal, sys, time
from pytest_clustersmoke.session import directory_watch

directory_watch.NAME_S, directory_watch.LEAVE_S = 1.0, {leave_s}
signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.utime")
PID = os.getpid()

def hang(event, args):
    if event in EVENTS and str(args[0]).startswith({shared!r}) and os.getpid() == PID:
        while os.path.exists({hung!r}):
            time.sleep(0.02)

statvfs = os.statvfs
os.statvfs = lambda path: (hang("open", (path,)), statvfs(path))[1]
sys.addaudithook(hang)
"""


@pytest.fixture
def hung(suite: Suite) -> Path:
    """A file: while it is there, the suite's shared directory does not answer pytest."""
    return write_conftest(suite, leave_s=2.0)


def write_conftest(suite: Suite, leave_s: float, blocked: str = "{}") -> Path:
    hung = suite.path / "hung"
    text = CONFTEST.format(
        shared=str(suite.shared), hung=str(hung), leave_s=leave_s, blocked=blocked
    )
    (suite.path / "conftest.py").write_text(text)
    return hung


def await_word(running: RunningPytest, word: str) -> None:
    running.wait_for(word, lambda: word in running.output())


@pytest.mark.parametrize("blocked", ["{}", "{signal.SIGINT}"], ids=["taken", "not_taken"])
def test_interrupted_run_leaves_a_shared_directory_that_hangs(suite: Suite, blocked: str) -> None:
    """The directory is named, then the jobs that may run, with the line that ends them; whether the
    main thread handles the signal, or no thread of pytest takes it, as where all hang in calls."""
    hung = write_conftest(suite, leave_s=2.0, blocked=blocked)
    suite.phase("small", script=str(IDLE), args={"seconds": 600})
    with suite.started() as running:
        running.wait_for_ranks()
        hung.touch()
        await_word(running, "has not answered for 1 s: waiting for it")
        assert running.output().count("has not answered") == 1
        running.interrupt(signal.SIGINT)
        outcome = running.wait()
    hung.unlink()
    (run,) = suite.runs()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    (submitted,) = read_events(suite.run_dir().journal).named("submitted")
    left = f"not confirmed that these have ended: {submitted['job_id']}; once it answers"
    assert left in outcome.output and f"--cluster-reap {run.name}" in outcome.output
    assert f"--cluster-attach {run.name}" in outcome.output
    reaped = suite.run_apart("--cluster-reap", run.name)
    assert reaped.ret == 0, reaped.output


def test_second_signal_leaves_a_shared_directory_that_hangs_at_once(suite: Suite) -> None:
    hung = write_conftest(suite, leave_s=600.0)
    suite.phase("small", script=str(IDLE), args={"seconds": 600})
    with suite.started() as running:
        running.wait_for_ranks()
        hung.touch()
        await_word(running, "has not answered for 1 s")
        running.interrupt(signal.SIGINT)
        running.interrupt(signal.SIGTERM)
        outcome = running.wait()
    hung.unlink()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    assert suite.run_apart("--cluster-reap", "all").ret == 0


def test_shared_directory_that_answers_again_costs_the_run_nothing(
    suite: Suite, hung: Path
) -> None:
    go = suite.path / "go"
    suite.phase(args={"wait_for": str(go)})
    with suite.started("-q") as running:
        running.wait_for_ranks()
        hung.touch()
        await_word(running, "has not answered for 1 s")
        hung.unlink()
        await_word(running, "answers again, after")
        go.touch()
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output


def test_directory_that_hangs_before_anything_was_submitted_is_named(
    suite: Suite, hung: Path
) -> None:
    suite.phase()
    suite.shared.mkdir()
    hung.touch()
    with suite.started() as running:
        await_word(running, "has not answered for 1 s")
        running.interrupt(signal.SIGTERM)
        outcome = running.wait()
    assert outcome.ret == -signal.SIGTERM or "nothing was submitted" in outcome.output
    assert suite.runs() == []
