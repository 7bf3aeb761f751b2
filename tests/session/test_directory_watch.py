"""A shared directory that hangs as a whole, as if its server were away."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.session import directory_watch as module
from pytest_clustersmoke.session.directory_watch import DirectoryWatch
from tests.support.evidence import make_profile
from tests.support.harness import IDLE, RunningPytest, Suite
from tests.support.waiting import PATIENCE_S, wait_for

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


@pytest.mark.parametrize(
    "blocked",
    ["{}", pytest.param("{signal.SIGINT}", marks=pytest.mark.slow)],
    ids=["taken", "not_taken"],
)
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
    assert outcome.ret == -signal.SIGTERM, outcome.output
    assert suite.runs() == []


class Watched:
    """A watch of a directory that answers while `answers` is set. Its lines are kept, as is that it
    would end pytest."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.answers, self._is_asked = threading.Event(), threading.Event()
        self.answers.set()
        self.lines: list[str] = []
        self.has_left = False
        self._looks = 0
        self._sigpending = signal.sigpending
        self.watch = DirectoryWatch(make_profile(folder))
        patch.setattr(os, "statvfs", self._answer)
        patch.setattr(signal, "sigpending", self._look)
        patch.setattr(self.watch, "_write", self.lines.append)
        patch.setattr(self.watch, "_leave", self._leave)

    def _answer(self, path: Path) -> None:
        self._is_asked.set()
        self.answers.wait()

    def _look(self) -> object:
        self._looks += 1
        return self._sigpending()

    def _leave(self, path: Path) -> None:
        self.has_left = True

    def await_question(self) -> None:
        """Return once another question was put."""
        self._is_asked.clear()
        assert self._is_asked.wait(PATIENCE_S)

    def await_looks(self) -> None:
        """Return once it has looked some times more."""
        enough = self._looks + 4
        wait_for("looks of the watch", lambda: self._looks >= enough)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    for name, seconds in {
        "LOOK_S": 0.05,
        "ASK_EVERY_S": 0.05,
        "NAME_S": 0.2,
        "LEAVE_S": 0.4,
    }.items():
        monkeypatch.setattr(module, name, seconds)
    watched = Watched(tmp_path, monkeypatch)
    watched.watch.start()
    yield watched
    watched.answers.set()
    watched.watch.stop()


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that somebody else's handler of SIGTERM got."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_signal_ends_no_pytest_whose_shared_directory_answers(
    watched: Watched, handled: list[int]
) -> None:
    """Neither at once nor when the directory hangs later: it was somebody else's. One that comes
    while it hangs does."""
    signal.raise_signal(signal.SIGTERM)
    assert handled
    for _ in range(3):
        watched.await_looks()
    assert not watched.has_left and not watched.lines
    for _ in range(2):  # the first may have been put before the signal
        watched.await_question()
    watched.await_looks()
    watched.answers.clear()
    wait_for("the name of the directory", lambda: watched.lines)
    for _ in range(3):
        watched.await_looks()
    assert not watched.has_left
    signal.raise_signal(signal.SIGTERM)
    wait_for("the end of pytest", lambda: watched.has_left)
    assert len(watched.lines) == 1


def test_time_in_which_pytest_stands_still_is_not_the_directorys(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one call keeps the interpreter, the answer to a question cannot be taken."""
    monkeypatch.setattr(module, "NAME_S", 3.0)
    watched.answers.clear()
    watched.await_question()
    ctypes.PyDLL(None).usleep(3_500_000)  # this keeps the interpreter
    watched.await_looks()
    assert not watched.lines


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_place_for_signals_is_left_to_others(tmp_path: Path) -> None:
    """To an event loop that runs pytest, to one that a test has started, and to forked children,
    whose signals are not pytest's."""
    reader, theirs = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(-1)
    watches = [DirectoryWatch(make_profile(tmp_path)) for _ in range(3)]
    try:
        for watch in watches[:2]:
            watch.start()
            child = os.fork()
            if child == 0:
                os._exit(signal.set_wakeup_fd(-1) != -1)
            assert os.waitpid(child, 0)[1] == 0
            signal.set_wakeup_fd(theirs)
            watch.stop()
            assert signal.set_wakeup_fd(-1) == theirs
        signal.set_wakeup_fd(theirs)
        watches[2].start()
        assert signal.set_wakeup_fd(theirs) == theirs
    finally:
        for watch in watches:
            watch.stop()
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(theirs)


def test_nothing_is_left_of_a_watch_that_has_ended(tmp_path: Path) -> None:
    """Several sessions may run in one process."""
    watches = [DirectoryWatch(make_profile(tmp_path)) for _ in range(2)]
    before = count_open()
    for watch in watches:  # one inside the other
        watch.start()
    for watch in reversed(watches):
        watch.stop()
    wait_for("the end of threads and descriptors", lambda: count_open() <= before)


def count_open() -> int:
    threads = [each for each in threading.enumerate() if "clustersmoke-directory" in each.name]
    return len(threads) + len([*Path("/proc/self/fd").iterdir()])
