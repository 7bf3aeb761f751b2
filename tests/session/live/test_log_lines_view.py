"""Progress without a terminal: one line per change, and a few lines of steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_clustersmoke.session.live.board import PhaseState
from pytest_clustersmoke.session.live.event_tail import Mark
from pytest_clustersmoke.session.live.log_lines_view import StepLines
from tests.fakes.slurm import FakeSlurm
from tests.session.live.terminal import Terminal
from tests.support.harness import Suite, lines_with, pytest_command

RUNS = PhaseState("a", "running", started=0.0)
BROKEN = """\
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        from pytest_clustersmoke.session.live.event_tail import EventTail
        from pytest_clustersmoke.jobs.poller import Poller
        def broken(*given):
            raise ValueError("it broke")
        {}.{} = broken
"""
LATE = """\
import threading
dots = threading.Event()
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        from pytest_clustersmoke.session.live.board import Board
        finish = Board.finish
        def late(*given):
            dots.wait()
            finish(*given)
        Board.finish = late
def pytest_runtest_logreport(report):
    if report.when == "teardown":
        dots.set()
"""


class Log:
    """The lines of one phase at given times."""

    def __init__(self) -> None:
        self.lines = StepLines()

    def at(self, now: float, mark: Mark, state: PhaseState = RUNS) -> list[str]:
        return [text for _, text in self.lines.due([state], {"a": mark}, now)]


def test_each_quarter_of_the_steps_is_a_line() -> None:
    """Steps of a second each give four lines, with loss and rate."""
    log = Log()
    lines = [
        line for step in range(1, 201) for line in log.at(step, Mark("train", step, 200, 2.5, 1.0))
    ]
    assert lines == [f"step {n} of 200, loss 2.5, 1 steps/s" for n in (50, 100, 150, 200)]


def test_slow_steps_give_a_line_a_minute() -> None:
    """A quarter may take an hour; a rank that makes no progress gets no line."""
    log = Log()
    slow = [line for now in range(601) for line in log.at(now, Mark("t", 1 + now // 30, 1000))]
    assert slow[:2] == ["step 2 of 1000", "step 4 of 1000"] and len(slow) == 10
    assert [line for now in range(601, 1201) for line in log.at(now, Mark("t", 21, 1000))] == [
        "step 21 of 1000"
    ]


def test_quick_steps_do_not_flood_the_log() -> None:
    """Quarters within five seconds give one line."""
    log = Log()
    lines = [line for n in range(1, 101) for line in log.at(n / 50, Mark("train", n, 100))]
    assert lines == ["step 25 of 100"]


def test_long_stage_is_a_line() -> None:
    """Ten seconds in a stage give one line; a shorter stage and its end give none."""
    log = Log()
    assert log.at(0, Mark("init")) == log.at(5, Mark("model")) == log.at(14, Mark("model")) == []
    assert log.at(15, Mark("model")) == ["stage model"]
    assert log.at(90, Mark("model")) == []
    assert log.at(99, Mark("compile"), PhaseState("a", "done")) == []


def test_log_of_a_run(suite: Suite) -> None:
    """Submitted, running on its node, steps, and the outcome."""
    suite.phase(args={"steps": 40, "before": 20, "wait_for": str(suite.path / "go")})
    releases = (
        "import pathlib\n"
        "from pytest_clustersmoke.session.live.pytest_terminal import PytestTerminal\n"
        "say = PytestTerminal.say\n"
        "def say_and_go(terminal, line, always=False):\n"
        "    say(terminal, line, always)\n"
        "    if 'step 20' in line: pathlib.Path('go').touch()\n"
        "PytestTerminal.say = say_and_go\n"
    )
    suite.path.joinpath("conftest.py").write_text(releases)
    result = suite.run_apart()
    assert result.ret == 0
    lines = [line.strip() for line in lines_with(result, "  small: ")]
    assert lines[0].startswith("small: submitted as job local-")
    assert lines[1:-1] == [
        "small: running on local0",
        "small: step 20 of 40, loss 0.125, 10 steps/s",
    ]
    assert lines[-1].startswith("small: passed after ")
    assert "\x1b" not in result.stdout.str()


@pytest.mark.parametrize(
    "words", [pytest.param((), marks=pytest.mark.slow), ("-n", "1")], ids=["alone", "xdist"]
)
def test_dumb_terminal_gets_lines(suite: Suite, words: tuple[str, ...]) -> None:
    """TERM=dumb, or CI with a terminal: one line per change, no escape sequences."""
    suite.phase()
    environ = {"TERM": "dumb"} if words else {"CI": "1", "NO_COLOR": "1"}
    with Terminal(pytest_command(*words), suite.path, environ=environ) as terminal:
        assert terminal.ended() == 0
        assert b"\x1b" not in terminal.raw
        lines = [line for line in terminal.text() if line.startswith("  small: ")]
        assert lines[0].startswith("  small: submitted as job")
        assert lines[-1].startswith("  small: passed after ")


def test_line_does_not_follow_xdists_dots(suite: Suite) -> None:
    """The controller starts a new line after a worker's results."""
    suite.path.joinpath("conftest.py").write_text(LATE)
    suite.phase()
    result = suite.run_apart("-n", "1")
    assert result.ret == 0
    assert len(lines_with(result, "small: passed after ")) == 1
    assert lines_with(result, "small: passed after ")[0].startswith("  small: ")


def test_quiet_run_under_xdist_prints_no_lines(suite: Suite) -> None:
    """-q leaves the lines out."""
    suite.phase()
    result = suite.run_apart("-q", "-n", "1")
    assert result.ret == 0 and not lines_with(result, "small: submitted")


def test_error_in_reading_events_does_not_fail_the_run(suite: Suite) -> None:
    """The error is printed once, and the run passes."""
    suite.path.joinpath("conftest.py").write_text(BROKEN.format("EventTail", "read"))
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 0
    assert lines_with(result, "ValueError") == ["  steps not shown: ValueError: it broke"]
    assert lines_with(result, "  small: passed after ")


def test_error_in_the_watch_thread_ends_xdist(suite: Suite) -> None:
    """Otherwise workers would wait forever for a result: status 3, and the cause."""
    suite.path.joinpath("conftest.py").write_text(BROKEN.format("Poller", "poll"))
    suite.phase()
    result = suite.run_apart("-n", "1")
    assert result.ret == 3
    assert "watching the jobs failed: it broke; the run's jobs are cancelled" in result.stdout.str()


@pytest.fixture
def on_slurm(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """One phase on a fake Slurm, whose job waits."""
    fake = FakeSlurm(tmp_path)
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    suite.cluster(backend="slurm", slurm={"partition": "gpu"}, python=sys.executable)
    suite.phase()
    starts = "Job 7 to start at 2031-02-03T04:05:06 using 2 processors on nodes n1 in partition gpu"
    fake.answers("sbatch", "7\n", f"sbatch: {starts}\n")
    fake.answers("scontrol", err="slurm_load: down", rc=1)
    fake.answers("squeue", "7|PENDING|Priority||2026-01-02T03:04:05|2031-02-03T04:00:00||\n")
    return fake


@pytest.mark.parametrize(
    "words", [pytest.param((), marks=pytest.mark.slow), ("-n", "1")], ids=["alone", "xdist"]
)
def test_queue_on_a_terminal(suite: Suite, on_slurm: FakeSlurm, words: tuple[str, ...]) -> None:
    """Preflight's lines stay. The view shows why the job waits and Slurm's estimate of its start,
    then its nodes and its stage, sanitised."""
    with Terminal(pytest_command(*words), suite.path, columns=120) as terminal:
        terminal.until(lambda: terminal.shows("Priority"))
        terminal.until(lambda: terminal.shows("Priority, estimated start 2031-02-03 04:00  job 7"))
        on_slurm.answers(
            "squeue", "7|RUNNING|None|n[1-2]|2026-01-02T03:04:05|2026-01-02T03:05:05||\n"
        )
        terminal.until(lambda: terminal.shows("running", "starting  n[1-2]  job 7"))
        (phase,) = suite.shared.glob("*/phases/small")
        run = phase.parent.parent.name
        identity = f'"schema": 1, "job": "{run}/small", "rank": 0, "time": 1, "mono": 1'
        hostile = (
            '{"event": "stage", "state": "begin", "name": "mo\\u001b[2Jdel", "time":1,"mono":1}'
        )
        phase.joinpath("ranks/00000.jsonl").write_text(
            f'{{"event": "start", {identity}}}\nno json\n{hostile}\n'
        )
        terminal.until(lambda: terminal.shows("stage mo\ufffd[2Jdel"))
        terminal.type("\x03")
        assert terminal.ended() == 2
        text = terminal.text()
        assert [
            line
            for line in text
            if line.startswith("  preflight: Slurm estimates that small may start at 2031")
        ]
        assert [line for line in text if line.startswith("  preflight: not checked: `scontrol")]
        assert not [line for line in text if "Priority" in line or "stage mo" in line]
    assert "scancel 7" in on_slurm.calls()


def test_queue_in_a_log(suite: Suite, on_slurm: FakeSlurm) -> None:
    """The reason is a line once, even if the estimate of the start changes."""
    on_slurm.answers_in_turn(
        "squeue",
        "7|PENDING|Resources||2026-01-02T03:04:05|2031-02-03T04:00:00||",
        "7|PENDING|Resources||2026-01-02T03:04:05|2031-02-03T05:00:00||",
        "7|CANCELLED|None||2026-01-02T03:04:05|Unknown||",
    )
    result = suite.run_apart()
    lines = [line.strip() for line in result.outlines if line.startswith("  small: ")]
    assert lines == ["small: submitted as job 7", "small: pending: Resources", "small: cancelled"]
    assert lines_with(
        result, "  preflight: Slurm estimates that small may start at 2031-02-03 04:05"
    )
