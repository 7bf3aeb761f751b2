"""Phases that the scheduler asks to stop: they save, are requeued, and go on, on a real Slurm."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.watched_phase import WatchedPhase
from tests.rank.conftest import PROGRAMS
from tests.support.harness import IDLE, TRAINED, Outcome, RunningPytest, Suite
from tests.support.killed import KILLER, attach
from tests.support.leftovers import none_left
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.lab
STILL_S = 8.0  # a suspension that is seen
MOST_STEPS = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[float]]:
    """The losses of two ranks under torchrun that nobody stops; a shorter training has the first
    of them."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("whole"), marker, real_torchrun=True)
        args = {"steps": MOST_STEPS, "precision": "fp32"}
        script = str(PROGRAMS / "resumed.py")
        suite.phase("whole", TRAINED, script=script, args=args, nodes=2)
        outcome = suite.run_apart()
        assert outcome.ret == 0, outcome.output
        phase = outcome.evidence("whole")
    assert not phase.earlier and len(set(phase.losses)) == MOST_STEPS
    yield phase.losses


def add_phase(suite: Suite, steps: int, pause_s: float, **marker: Any) -> None:
    args = {"steps": steps, "pause_s": pause_s, "precision": "fp32"}
    script = str(PROGRAMS / "resumed.py")
    values = {"nodes": 2, "resume": True, **marker}
    suite.phase("long", TRAINED, script=script, args=args, base="Resumed", **values)


def wait_for_step(
    suite: Suite, running: RunningPytest, attempt: int, step: int, name: str = "long"
) -> None:
    """Wait until an attempt has marked this step, counted from the first of all."""

    def look() -> bool:
        place = suite.run_dir().phase(name)
        attempts = {each.attempt: each for each in place.attempts()}
        if attempt not in attempts:
            return False
        mark = read_events(attempts[attempt].rank_events(0)).last("step") or {}
        return bool(mark.get("step", 0) >= step)

    running.wait_for(f"step {step} of attempt {attempt}", look)


def check_losses(phase: PhaseResult, whole: Sequence[float], steps: int) -> None:
    """They are those of one training, with no step twice or left out."""
    assert len(phase.losses) == steps <= len(whole)
    assert phase.losses == pytest.approx(whole[:steps], rel=1e-6)


def check_parts(outcome: Outcome, whole: Sequence[float], steps: int) -> tuple[PhaseResult, ...]:
    """All attempts; together they are one training."""
    assert outcome.ret == 0, outcome.output
    phase = outcome.evidence("long")
    check_losses(phase, whole, steps)
    return (*phase.earlier, phase)


@pytest.mark.slow
def test_phase_that_slurm_asks_to_stop_is_requeued_and_goes_on(
    lab_suite: Suite, whole: Sequence[float]
) -> None:
    """The signal reaches every process of the step; the ranks agree on a step, twice: once in the
    attempt after a stop of the phase's own."""
    add_phase(lab_suite, steps=20, pause_s=0.3, resume=4)
    with lab_suite.started() as running:
        for attempt, step in ((1, 7), (10, 13)):  # the first stops by itself
            wait_for_step(lab_suite, running, attempt, step)
            (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
            lab_suite.slurm("scancel", "--signal=USR1", job)
        outcome = running.wait()
    attempts = check_parts(outcome, whole, steps=20)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 1, 10, 20]
    assert [event["phase"] for event in outcome.events("requeued")] == ["long", "long"]


@pytest.mark.slow
def test_restart_is_awaited_by_the_run_that_attaches(
    lab_suite: Suite, whole: Sequence[float]
) -> None:
    """The controller was killed after its line about the requeue, and before it had Slurm start the
    job at once. The job waits as for any other start."""
    add_phase(lab_suite, steps=20, pause_s=0.3)
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started(KILL_AT="requeued:1") as running:
        wait_for_step(lab_suite, running, attempt=0, step=5)
        (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
        lab_suite.slurm("scancel", "--signal=USR1", job)
        assert running.process.wait(PATIENCE_S) == -signal.SIGKILL, running.output()
    attempts = check_parts(attach(lab_suite), whole, steps=20)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 10]


# A Python that on the job's second start waits for a file before it starts `run_node`. (No shell:
# dash unblocks all signals once it has waited for a command.)
HELD = """#!{python}
import os, sys, time
folder = {folder!r}
if os.environ.get("SLURM_RESTART_COUNT") == "1":
    open(f"{{folder}}/held.{{os.environ['SLURM_NODEID']}}", "w").close()
    while not os.path.exists(f"{{folder}}/go"):
        time.sleep(0.05)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.slow
def test_signal_between_two_attempts_is_not_lost(lab_suite: Suite, whole: Sequence[float]) -> None:
    """After the ranks of the first attempt stopped as planned, and before those of the second have
    started, the scheduler asks; once more as soon as the ranks have stopped for it, before the job
    is requeued; and again where the next start has not got as far as Python."""
    python = lab_suite.path / "python.sh"
    python.write_text(HELD.format(folder=str(lab_suite.path), python=sys.executable))
    python.chmod(0o700)
    lab_suite.profile["python"] = str(python)
    add_phase(lab_suite, steps=16, pause_s=0.1, resume=4)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=1)
        (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
        for attempt in (0, 1):
            place = replace(lab_suite.run_dir().phase("long"), attempt=attempt)
            running.wait_for(f"the end of attempt {attempt}", place.node_result(0).exists)
            lab_suite.slurm("scancel", "--signal=USR1", job)
        held = [lab_suite.path / f"held.{node}" for node in range(2)]
        running.wait_for("the next start", lambda: all(path.exists() for path in held))
        lab_suite.slurm("scancel", "--signal=USR1", job)
        (lab_suite.path / "go").touch()
        outcome = running.wait()
    attempts = check_parts(outcome, whole, steps=16)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 1, 10, 20]
    assert [len(attempt.losses) for attempt in attempts[:-1]] == [4, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "nodes"), [("srun", 2), ("accelerate", 2), ("deepspeed", 1), ("torchrun-c10d", 2)]
)
def test_both_parts_are_one_training_under_each_launcher(
    lab_suite: Suite, whole: Sequence[float], launcher: str, nodes: int
) -> None:
    """The losses equal those of two ranks under torchrun that nobody stops."""
    sizes: dict[str, Any] = {"nodes": nodes, "gpus_per_node": 2 // nodes}
    add_phase(lab_suite, steps=12, pause_s=0.3, launcher=launcher, **sizes)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=3)
        job = WatchedPhase(lab_suite, "long").job
        lab_suite.slurm("scancel", "--signal=USR1", job)
        outcome = running.wait()
    attempts = check_parts(outcome, whole, steps=12)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 10]
    assert [event["phase"] for event in outcome.events("requeued")] == ["long"]
    for attempt in attempts:
        starts = [read_events(attempt.directory.node_events(n)) for n in range(nodes)]
        named = [(events.last("launcher_start") or {}).get("launcher") for events in starts]
        assert named == [launcher] * nodes


@pytest.mark.slow
def test_suspension_before_the_stop_is_reported_after_it(
    lab_suite: Suite, whole: Sequence[float]
) -> None:
    """The second part was not suspended, and succeeds; but the times of the first mean nothing."""
    add_phase(lab_suite, steps=14, pause_s=0.3)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=2)
        phase = WatchedPhase(lab_suite, "long")
        lab_suite.slurm("scontrol", "suspend", phase.job)
        time.sleep(STILL_S)
        lab_suite.slurm("scontrol", "resume", phase.job)
        wait_for_step(lab_suite, running, attempt=0, step=4)
        lab_suite.slurm("scancel", "--signal=USR1", phase.job)
        outcome = running.wait()
    assert outcome.phase("long")["outcome"] == "preempted", outcome.output
    assert outcome.record()["verdict"] == "INCONCLUSIVE" and outcome.ret == 6
    finding, last = outcome.finding("long"), outcome.evidence("long")
    assert finding["id"] == "job-suspended", finding
    (still,) = re.findall(r"suspended for (\d+) s", finding["cause"])
    assert STILL_S - 1 <= int(still) < STILL_S + 30
    (first,) = last.earlier
    assert [node.paused_s for node in last.nodes] == [0.0, 0.0]
    assert finding["hosts"] == [node.name for node in first.nodes]
    for item, node in zip(finding["evidence"], first.nodes, strict=True):
        assert item["text"].startswith("paused for "), item
        path = first.directory.node_events(node.node_rank)
        assert item["file"].endswith(str(path.relative_to(path.parents[2]))), item
    check_losses(last, whole, steps=14)


@pytest.mark.slow
def test_task_of_an_array_is_requeued_alone(lab_suite: Suite) -> None:
    """Slurm gives the last task the array's own job id, by which it would requeue all tasks."""
    lab_suite.profile["limits"] |= {"max_jobs": 1}
    add_phase(lab_suite, steps=12, pause_s=0.3, nodes=1, sweep={"steps": [6, 20]})
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=3, name="long-steps-20")
        (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
        assert job.endswith("_1")
        lab_suite.slurm("scancel", "--signal=USR1", job)
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    assert [event["phase"] for event in outcome.events("requeued")] == ["long-steps-20"]
    assert len(outcome.evidence("long-steps-20").losses) == 20
    assert lab_suite.slurm("squeue", "-h", "-o", "%i").split() == []


@pytest.mark.slow
def test_phase_near_its_time_limit_is_requeued_and_goes_on(
    lab_suite: Suite, whole: Sequence[float]
) -> None:
    """Slurm looks every 30 s which jobs are to get the signal before its next look: here after 30
    to 60 s of two minutes, in which all steps do not fit."""
    lab_suite.profile["limits"] |= {"stop_before_s": 60}
    lab_suite.profile["slurm"] |= {"time": 2}
    add_phase(lab_suite, steps=MOST_STEPS, pause_s=1.6)
    attempts = check_parts(lab_suite.run_apart(patience_s=480), whole, steps=MOST_STEPS)
    assert len(attempts) > 1


@pytest.mark.slow
def test_preempted_phase_with_grace_saves_and_goes_on(
    lab_suite: Suite, whole: Sequence[float]
) -> None:
    """The partition grants a minute, and Slurm sends the signal at its beginning. The job that
    preempts runs before the phase goes on."""
    lab_suite.profile["slurm"] |= {"partition": "preemptible"}
    add_phase(lab_suite, steps=14, pause_s=0.3)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=3)
        nodes = lab_suite.slurm("squeue", "-h", "-o", "%N", "-t", "R").strip()
        urgent = ("-p", "high", "-w", nodes, "--exclusive", "-o", "/dev/null", "--wrap=sleep 3")
        other = lab_suite.slurm("sbatch", "--parsable", *urgent).strip()
        outcome = running.wait()
    attempts = check_parts(outcome, whole, steps=14)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 10]
    assert [event["phase"] for event in outcome.events("requeued")] == ["long"]
    ended = lab_suite.slurm("scontrol", "show", "job", other)
    assert "JobState=COMPLETED" in ended
    first, last = (read_events(attempt.directory.rank_events(0)) for attempt in attempts)
    (stop,), (resume,) = first.named("stop"), last.named("resume")
    assert stop["asked"] is True and resume["step"] == stop["step"]
    (second,) = re.findall(r" StartTime=(\S+)", ended)
    other_started = datetime.fromisoformat(second).timestamp()
    assert stop["time"] < other_started + 1 and other_started < resume["time"]


@pytest.mark.slow
def test_phase_that_ends_at_the_notice_of_a_preemption_has_not_failed(lab_suite: Suite) -> None:
    """Without `resume` it asks for no signal, so Slurm sends SIGTERM, and calls it FAILED."""
    lab_suite.profile["slurm"] |= {"partition": "preemptible"}
    lab_suite.phase("small", script=IDLE, args={"seconds": 60})
    with lab_suite.started() as running:
        running.wait_for("the start", lab_suite.run_dir().phase("small").rank_events(0).exists)
        node = lab_suite.slurm("squeue", "-h", "-o", "%N", "-t", "R").strip()
        urgent = ("-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap=true")
        lab_suite.slurm("sbatch", *urgent)
        outcome = running.wait()
    assert (outcome.ret, outcome.phase("small")["outcome"]) == (6, "preempted"), outcome.output
    assert outcome.finding("small")["id"] == "preempted"


@pytest.mark.slow
def test_phase_that_is_requeued_without_warning_is_not_resumed(lab_suite: Suite) -> None:
    """A node may have failed. The job is cancelled, and the run proves nothing; it says which steps
    are done again."""
    add_phase(lab_suite, steps=12, pause_s=0.3)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=3)
        (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
        lab_suite.slurm("scontrol", "requeue", job)
        outcome = running.wait()
    assert outcome.phase("long")["outcome"] == "preempted", outcome.output
    assert outcome.record()["verdict"] == "INCONCLUSIVE"
    assert re.search(r"steps 1 to \d+ of 12 again", outcome.phase("long")["reason"])
    assert outcome.events("requeued") == []
    assert lab_suite.slurm("squeue", "-h", "-j", job, "-o", "%T").split() == []


@pytest.mark.slow
@pytest.mark.parametrize(("resume", "stopped"), [(True, ()), (4, (0,))])
def test_phase_that_is_requeued_while_nobody_watches_is_not_resumed(
    lab_suite: Suite, resume: int, stopped: tuple[int, ...]
) -> None:
    """Also after a stop of the phase's own, in the attempt that follows it. The run that attaches
    judges as one that watched would."""
    add_phase(lab_suite, steps=MOST_STEPS, pause_s=0.3, resume=resume)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=len(stopped), step=6)
        running.process.kill()
    phase = WatchedPhase(lab_suite, "long")
    lab_suite.slurm("scontrol", "requeue", phase.job)
    phase.wait_for_second_start()
    attempts = [attempt.attempt for attempt in phase.directory().attempts()]
    assert attempts == [*stopped, len(stopped)]
    outcome = attach(lab_suite)
    assert outcome.phase("long")["outcome"] == "preempted", outcome.output
    assert (outcome.ret, outcome.finding("long")["id"]) == (6, "requeued"), outcome.output
