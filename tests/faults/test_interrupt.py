"""Ctrl-C and SIGTERM while phases run: every job is cancelled at once, and no process is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.lab import Lab
from tests.faults.watched_phase import LONG, WatchedPhase
from tests.support.harness import IDLE, Outcome, RunningPytest, Suite
from tests.support.load import load_factor
from tests.support.waiting import PATIENCE_S, wait_for

ENDED_WITHIN_S = 2.0
GONE_WITHIN_S = 5.0
KILL_WAIT_S = 2.0  # the lab's KillWait: from Slurm's TERM to its KILL
# pytest writes its report last, and a shared machine whose disk stalls holds that up for a minute:
# only `make test-all` asks for GONE_WITHIN_S.
RUNS = [pytest.param((), GONE_WITHIN_S, marks=pytest.mark.slow), (("-n", "2"), PATIENCE_S)]


def processes_of_run(suite: Suite, pytest_pid: int) -> set[int]:
    """The processes with the suite's marker that are not in pytest's own process group."""
    pids = set()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or os.getpgid(int(entry.name)) == pytest_pid:
                continue
            if suite.marker.encode() in (entry / "environ").read_bytes():
                pids.add(int(entry.name))
        except OSError:
            continue
    return pids


def end_with_stacks(running: RunningPytest, gone_within_s: float) -> Outcome:
    """Wait for pytest to end; one that does not in time is aborted, and prints where it stands."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.process.wait(gone_within_s)
    if running.process.poll() is None:
        running.interrupt(signal.SIGABRT)  # pytest's faulthandler prints the stack of each thread
    return running.wait()


def interrupt(
    suite: Suite, send: Callable[[int], None], *words: str, gone_within_s: float
) -> tuple[Outcome, float]:
    """Run two phases, and interrupt pytest by `send(pid)` while the first runs.

    Returns the outcome and the seconds from the signal to the end of every process of the run,
    without those in which work waited for a core.
    """
    with suite.started(*words) as running:
        WatchedPhase(suite, "first", nodes=2).wait()
        assert processes_of_run(suite, running.pid)
        sent = time.time()
        send(running.pid)
        wait_for("the end of the run's processes", lambda: not processes_of_run(suite, running.pid))
        ended = time.time()
        outcome = end_with_stacks(running, gone_within_s)
        gone_s = time.time() - sent
    print(f"all ended after {ended - sent:.2f} s, pytest gone after {gone_s:.2f} s")
    return outcome, suite.pressure.own_s(sent, ended)


def check_interrupted(outcome: Outcome, phases: tuple[str, ...] = ("first", "second")) -> None:
    """The run is reported as interrupted: it has no verdict, and the cluster has not failed."""
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    assert outcome.record()["verdict"] == "INCONCLUSIVE"
    assert outcome.record()["interrupted"] is True
    assert outcome.record()["partial"].startswith("the run was interrupted")
    for name in phases:
        assert outcome.phase(name)["outcome"] == "cancelled"
        assert "interrupted" in outcome.phase(name)["reason"]
    assert len(outcome.events("cancelled")) == 1
    assert "INTERNALERROR" not in outcome.output and "Traceback" not in outcome.output


def send_to_group(pid: int) -> None:
    """As a terminal does at Ctrl-C."""
    os.killpg(pid, signal.SIGINT)


def send_to_pytest(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.slow  # on Slurm below
@pytest.mark.parametrize(("words", "gone_within_s"), RUNS, ids=["plain", "xdist"])
@pytest.mark.parametrize("send", [send_to_group, send_to_pytest], ids=["ctrl_c", "sigterm"])
def test_interrupt_ends_every_process_of_the_run(
    send: Callable[[int], None], words: tuple[str, ...], gone_within_s: float, torch_suite: Suite
) -> None:
    """Two virtual nodes end within 2 s; pytest ends; the waiting phase never starts."""
    for name in ("first", "second"):
        torch_suite.phase(name, script=IDLE, nodes=2, gpus_per_node=1, args=LONG)
    factor = load_factor()
    limit_s = gone_within_s * factor
    outcome, ended_s = interrupt(torch_suite, send, *words, gone_within_s=limit_s)
    assert ended_s < ENDED_WITHIN_S * max(factor, load_factor())
    check_interrupted(outcome)
    assert [event["phase"] for event in outcome.events("submitted")] == ["first"]


def log_calls(directory: Path, command: str) -> Path:
    """Make a directory for PATH in which `command` logs each call; return the log."""
    real = subprocess.run(["which", command], capture_output=True, text=True, check=True).stdout
    directory.mkdir()
    shim = directory / command
    shim.write_text(
        f'#!/bin/sh\necho "$@" >> {directory}/{command}.calls\nexec {real.strip()} "$@"\n'
    )
    shim.chmod(0o755)
    return directory / f"{command}.calls"


@pytest.mark.lab
@pytest.mark.parametrize(("words", "gone_within_s"), RUNS, ids=["plain", "xdist"])
def test_interrupt_cancels_all_slurm_jobs_with_one_scancel(
    words: tuple[str, ...],
    gone_within_s: float,
    lab_suite: Suite,
    faults_lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One call cancels both running jobs, and no process is left on any node."""
    calls = log_calls(tmp_path / "bin", "scancel")
    monkeypatch.setenv("PATH", f"{calls.parent}:{os.environ['PATH']}")
    for name in ("first", "second"):
        lab_suite.phase(name, script=IDLE, nodes=2, gpus_per_node=1, args=LONG)
    factor = load_factor()
    limit_s = gone_within_s * factor
    outcome, ended_s = interrupt(lab_suite, send_to_group, *words, gone_within_s=limit_s)
    check_interrupted(outcome)
    jobs = [event["job_id"] for event in outcome.events("submitted")]
    (call,) = calls.read_text().splitlines()
    assert sorted(call.split()) == sorted(jobs)
    assert ended_s < (ENDED_WITHIN_S + KILL_WAIT_S) * max(factor, load_factor())
    states = lab_suite.slurm("squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-o", "%T")
    assert set(states.split()) == {"CANCELLED"}
    names = lab_suite.slurm("squeue", "-h", "-o", "%j")
    assert outcome.record()["run_id"] not in names
