"""Ctrl-C and SIGTERM while phases run: every job is cancelled at once, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.lab import Lab
from tests.faults.harness import DONE, Outcome, Suite, wait_for

ENDED_WITHIN_S = 2.0
GONE_WITHIN_S = 5.0
KILL_WAIT_S = 2.0  # the lab's KillWait: from Slurm's TERM to its KILL
LONG = {"seconds": 600}
WORKERS = ("-n", "2")


def of_run(suite: Suite, pytest_pid: int) -> set[int]:
    """The processes that carry the suite's mark and are not of pytest's own process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or os.getpgid(int(entry.name)) == pytest_pid:
                continue
            if suite.mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def stretch() -> float:
    """How much longer all takes on a machine that has more to do than it has cores."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def interrupt(suite: Suite, send: Callable[[int], None], *words: str) -> tuple[Outcome, float]:
    """Run two phases, of which the first is running when pytest is interrupted by `send(pid)`.

    Returns the outcome and the seconds from the signal to the end of every process of the run.
    """
    with suite.started(*words) as process:
        phase = suite.run_dir().phase("first")
        for rank in range(2):
            suite.wait_event(phase.rank_events(rank), "step")
        assert of_run(suite, process.pid)
        sent = time.monotonic()
        send(process.pid)
        wait_for("the end of the run's processes", lambda: not of_run(suite, process.pid), 20)
        ended_s = time.monotonic() - sent
        process.wait(20)
        gone_s = time.monotonic() - sent
    outcome = suite.ended(process)
    print(f"all ended after {ended_s:.2f} s, pytest gone after {gone_s:.2f} s")
    assert gone_s < GONE_WITHIN_S * stretch(), outcome.output
    return outcome, ended_s


def check(outcome: Outcome, phases: tuple[str, ...] = ("first", "second")) -> None:
    """Interrupted, and reported as that: no verdict, no pass, no failure of the cluster's."""
    assert outcome.status == pytest.ExitCode.INTERRUPTED, outcome.output
    assert outcome.report["verdict"] == "INCONCLUSIVE"
    assert outcome.report["interrupted"] is True
    assert outcome.report["partial"] == "the run was interrupted"
    for name in phases:
        assert outcome.phase(name)["outcome"] == "cancelled"
        assert "interrupted" in outcome.phase(name)["reason"]
    assert len(outcome.journal("cancelled")) == 1
    assert "INTERNALERROR" not in outcome.output and "Traceback" not in outcome.output


def to_group(pid: int) -> None:
    """As a terminal does at Ctrl-C."""
    os.killpg(pid, signal.SIGINT)


def to_pytest(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("words", [(), WORKERS], ids=["plain", "xdist"])
@pytest.mark.parametrize("send", [to_group, to_pytest], ids=["ctrl_c", "sigterm"])
def test_interrupt_ends_every_process_of_the_run(
    send: Callable[[int], None], words: tuple[str, ...], broken: Suite
) -> None:
    """Two virtual nodes end within 2 s, pytest within 5; the phase that waited never starts."""
    for name in ("first", "second"):
        broken.phase(name, "idle.py", DONE, nodes=2, gpus_per_node=1, args=LONG)
    outcome, ended_s = interrupt(broken, send, *words)
    assert ended_s < ENDED_WITHIN_S * stretch()
    check(outcome)
    assert [one["phase"] for one in outcome.journal("submitted")] == ["first"]


def counting(directory: Path, command: str) -> Path:
    """A directory for PATH in which `command` notes each of its calls before it goes on."""
    real = subprocess.run(["which", command], capture_output=True, text=True, check=True).stdout
    directory.mkdir()
    shim = directory / command
    shim.write_text(
        f'#!/bin/sh\necho "$@" >> {directory}/{command}.calls\nexec {real.strip()} "$@"\n'
    )
    shim.chmod(0o755)
    return directory / f"{command}.calls"


@pytest.mark.lab
@pytest.mark.parametrize("words", [(), WORKERS], ids=["plain", "xdist"])
def test_interrupt_cancels_all_jobs_of_a_real_slurm_with_one_scancel(
    words: tuple[str, ...],
    on_lab: Suite,
    faults_lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both running jobs are CANCELLED by one call, and no node has a process of ours left."""
    calls = counting(tmp_path / "bin", "scancel")
    monkeypatch.setenv("PATH", f"{calls.parent}:{os.environ['PATH']}")
    for name in ("first", "second"):
        on_lab.phase(name, "idle.py", DONE, nodes=2, gpus_per_node=1, args=LONG)
    outcome, ended_s = interrupt(on_lab, to_group, *words)
    check(outcome)
    jobs = [one["job_id"] for one in outcome.journal("submitted")]
    assert calls.read_text().splitlines() == [" ".join(jobs)]
    assert ended_s < (ENDED_WITHIN_S + KILL_WAIT_S) * stretch()
    states = on_lab.slurm("squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-o", "%T")
    assert set(states.split()) == {"CANCELLED"}
    names = on_lab.slurm("squeue", "-h", "-o", "%j")
    assert outcome.report["run_id"] not in names
