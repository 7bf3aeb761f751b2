"""A rank that hangs or fails writes its evidence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.rank.conftest import (
    PROGRAMS,
    RUN_WITHIN_S,
    Run,
    rank_environment,
    started,
    torchrun_line,
)
from tests.support.load import Pressure
from tests.support.waiting import time_to_end, wait_for, wait_for_event


def records_gloo() -> bool:
    """Whether this torch's flight recorder also records gloo's collectives."""
    major, minor = version("torch").split(".")[:2]
    return (int(major), int(minor)) >= (2, 6)


def recorded(phase: PhaseDir, rank: int) -> dict[str, Any]:
    """The rank's flight recorder; on a loaded machine perhaps only the one without source lines."""
    whole, brief = phase.rank_flight_recorder(rank), phase.rank_flight_recorder_brief(rank)
    record: dict[str, Any] = json.loads((whole if whole.exists() else brief).read_text())
    return record


def test_hanging_ranks_dump_stacks_and_flight_recorder(tmp_path: Path) -> None:
    """On SIGUSR2 a rank that hangs in a collective and one that waits elsewhere both write their
    stacks, and their flight recorders if torch has one for gloo; not on Slurm's signal to stop."""
    phase = PhaseDir(tmp_path / "phase")
    line = torchrun_line(PROGRAMS / "hang.py", 2, ())
    with started(line, rank_environment(phase)):
        for rank in (0, 1):
            events = phase.rank_events(rank)
            wait_for_event(events, "fact")  # it hangs
        for rank in (0, 1):
            start = read_events(phase.rank_events(rank)).last("start")
            assert start is not None
            os.kill(start["pid"], signal.SIGUSR1)
            os.kill(start["pid"], signal.SIGUSR2)
        for rank in (0, 1):
            stack = phase.rank_stack(rank)
            wait_for(f"the stacks of rank {rank}", lambda f=stack: "hang.py" in f.read_text())  # type: ignore[misc]
        if records_gloo():
            for rank in (0, 1):
                dump = phase.rank_flight_recorder(rank)
                wait_for(f"the flight recorder of rank {rank}", dump.exists)
        stacks = [phase.rank_stack(rank).read_text() for rank in (0, 1)]
    assert "all_reduce" in stacks[0] and "hang.py" in stacks[0]
    assert stacks[1].count("in stay_away") == 1
    if records_gloo():
        check_records(phase)


def check_records(phase: PhaseDir) -> None:
    entries = [json.loads(phase.rank_flight_recorder(r).read_text())["entries"] for r in (0, 1)]
    ahead, behind = (e[-1] for e in entries)
    assert ahead["input_sizes"] == [[5]] and not ahead["retired"]
    assert behind["input_sizes"] == [[3]] and behind["retired"]
    assert any(frame["filename"].endswith("hang.py") for frame in ahead["frames"])


@pytest.mark.slow
def test_exception_is_recorded_and_ends_the_rank(torchrun: Callable[..., Run]) -> None:
    """A rank that raises records the error and exits, although its peer waits in a collective."""
    with Pressure() as pressure:
        began = time.time()
        run = torchrun("fail.py", ranks=2)
        own_s = pressure.own_s(began, time.time())
    assert run.status != 0 and own_s < 100  # the group's timeout is 300 s
    error = run.only("error", 1)
    assert (error["type"], error["message"]) == ("RuntimeError", "this rank has had enough")
    assert "fail.py" in error["traceback"]
    assert run.events(1).last("done") is None


@pytest.mark.slow
def test_aborting_rank_writes_its_flight_recorder(tmp_path: Path) -> None:
    """gloo and NCCL abort from threads of their own; the rank still ends by SIGABRT, within
    seconds."""
    phase = PhaseDir(tmp_path / "phase")
    line = torchrun_line(PROGRAMS / "aborts.py", 2, ())
    with started(line, rank_environment(phase)) as process:
        began = time.monotonic()
        output, _ = process.communicate(timeout=RUN_WITHIN_S)
    assert time.monotonic() - began < RUN_WITHIN_S and "exitcode: -6" in output
    assert "Fatal Python error: Aborted" in output
    if not records_gloo():
        return
    assert recorded(phase, 0)["entries"][-1]["input_sizes"] == [[5]]


@pytest.mark.slow
def test_raising_rank_writes_its_flight_recorder_before_the_error(
    torchrun: Callable[..., Run],
) -> None:
    """The flight recorder includes the members of the process groups."""
    run = torchrun("fail.py", ranks=2)
    record = recorded(run.phase, 1)
    assert record["groups"] == {"0": [0, 1]}
    if records_gloo():
        assert [entry["profiling_name"] for entry in record["entries"]] == ["gloo:barrier"]


def test_disabling_faulthandler_is_not_mistaken_for_an_abort() -> None:
    """Doing so restores the handler by which an abort is detected."""
    code = (
        "import faulthandler\nfrom pytest_clustersmoke.rank import abort_delay\n"
        "abort_delay.arm()\nassert not abort_delay.aborting()\nfaulthandler.disable()\n"
        "assert not abort_delay.aborting()\nfaulthandler.enable()\n"
        "assert not abort_delay.aborting()\nabort_delay.disarm()\n"
        "assert not abort_delay.aborting()\nimport os, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))\n"  # no core dump
        "print(flush=True)\nos.abort()"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout and process.stdout.readline() == "\n", process.communicate()
        assert time_to_end(process) < 5  # without the 6 s by which an abort is delayed
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGABRT, errors
    assert "AssertionError" not in errors
