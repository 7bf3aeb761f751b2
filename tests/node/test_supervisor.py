"""When torchrun ends, everything it started ends; the result keeps the real reason.

The launcher adopts orphans and ends its descendants, so these tests run it in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import EventWriter, read_events
from pytest_clustersmoke.node import process_tree, supervisor
from pytest_clustersmoke.node.abort_flag import raise_abort
from pytest_clustersmoke.node.agent import LauncherProcess
from pytest_clustersmoke.node.rank_progress import RankWatch
from tests.support.launched import make_job
from tests.support.waiting import wait_for, wait_for_event

LAUNCHER = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
from pytest_clustersmoke.evidence.process_start import parent_of_task
from pytest_clustersmoke.node.rank_progress import RankWatch
from pytest_clustersmoke.node.supervisor import supervise_ranks
from pytest_clustersmoke.evidence.telemetry import EventWriter
from tests.support.launched import make_job

job = replace(make_job(Path(sys.argv[1])), daemon=parent_of_task())
if sys.argv[4:]:
    EventWriter(job.dir.node_events(0)).write("claim")
    while os.getppid() == job.daemon:
        time.sleep(0.01)
read = RankWatch.read
def read_and_tell(watch):
    read(watch)
    if watch.processes():
        (job.dir.root / "seen").touch()
RankWatch.read = read_and_tell
before = json.loads(sys.argv[3])
if before:
    import subprocess
    bystander = subprocess.Popen(before)
events = EventWriter(job.dir.node_events(0))
result = supervise_ranks(job, ["bash", "-c", sys.argv[2]], os.environ, events)
if before:
    result["bystander"] = bystander.poll()
    bystander.kill()
    bystander.wait()
print(json.dumps(result))
"""
Leftovers = tuple[str, Callable[[], list[str]]]


# Its own name is the script's.
SLURMSTEPD = """#!/bin/sh
out=$1; shift
"$@" > "$out" &
wait
"""


def launch(folder: Path, leftovers: Leftovers, torchrun: str, before: Any = ()) -> dict[str, Any]:
    """The launcher's result with this shell text as torchrun; no process may be left."""
    marker, running = leftovers
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(folder), torchrun, json.dumps(before)],
        env={**os.environ, marker: "1"},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert running() == []
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_ranks_without_events_end_with_a_killed_torchrun(
    tmp_path: Path, leftovers: Leftovers
) -> None:
    """Ranks that still import torch have written no event, run in sessions of their own, and have
    lost their parent: they are ended anyway."""
    result = launch(tmp_path, leftovers, "setsid sleep 600 & setsid sleep 600 & kill -9 $$")
    assert (result["reason"], result["returncode"]) == ("torchrun", -9)


def test_children_of_ranks_are_ended(tmp_path: Path, leftovers: Leftovers) -> None:
    """Torchrun leaves them behind; they are ended even if they ignore TERM."""
    deaf = "trap '' TERM; setsid sleep 600 & sleep 600"
    result = launch(tmp_path, leftovers, f'setsid bash -c "{deaf}" & exit 3')
    assert (result["reason"], result["returncode"]) == ("torchrun", 3)


def test_aborted_phase_keeps_its_reason_and_torchrun_status(
    tmp_path: Path, leftovers: Leftovers
) -> None:
    """This torchrun ignores TERM and is killed, and the result has that status."""
    flag, part = tmp_path / "abort.json", tmp_path / "part"
    part.write_text(json.dumps({"node": "n1", "why": "no link"}))
    result = launch(tmp_path, leftovers, f"trap '' TERM; mv {part} {flag}; exec sleep 600")
    assert (result["reason"], result["why"]) == ("aborted", "n1: no link")
    assert result["returncode"] == -9


def test_processes_started_before_torchrun_are_not_ended(
    tmp_path: Path, leftovers: Leftovers
) -> None:
    """Only processes that torchrun started are ended."""
    result = launch(tmp_path, leftovers, "exit 3", before=["sleep", "600"])
    assert result["bystander"] is None


RANK = """
import os, sys, time
from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pathlib import Path

if sys.argv[2] == "orphan" and os.fork():
    os._exit(0)
events = EventWriter(PhaseDir(Path(sys.argv[1])).rank_events(0))
events.write("start", pid=os.getpid(), pid_started=start_s(os.getpid()))
for _ in range(3000 if sys.argv[3] == "waits" else 0):
    if Path(sys.argv[1], "seen").exists():
        break
    time.sleep(0.02)
events.write("done")
Path(sys.argv[1], "done").touch()
"""


@pytest.mark.parametrize(
    ("wrapper", "how", "until", "is_own"),
    [
        ("exec", "", "waits", True),
        ("setsid bash -c 'exec \"$@\"; true' -", "", "waits", True),
        ('env -i PATH="$PATH"', "orphan", "waits", True),
        ("exec", "", "ends", None),  # it has ended before the node looks, or just not
    ],
)
def test_result_records_the_processes_of_the_ranks(
    tmp_path: Path,
    leftovers: Leftovers,
    wrapper: str,
    how: str,
    until: str,
    is_own: bool | None,
) -> None:
    """Behind any wrapper, and adopted, they are the node's own, started during the launch. A rank
    that waits goes on once the node has seen it, and after a minute in any case: nobody may be left
    to end it."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    torchrun = f"{wrapper} {sys.executable} {program} {tmp_path} '{how}' {until}"
    outlives = f"; for _ in {{1..3000}}; do [ -e {tmp_path}/done ] && break; sleep 0.02; done"
    result = launch(tmp_path, leftovers, torchrun + outlives * bool(how))
    (process,) = result["processes"]
    assert process["rank"] == 0 and process["is_own"] in (is_own, True)
    assert result["boot_begun_s"] - 0.1 <= process["pid_started"] <= result["boot_ended_s"]


def test_torchrun_that_cannot_be_ended_does_not_hide_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In uninterruptible sleep it is left to the system, and no exception replaces the result."""

    class Asleep(subprocess.Popen[bytes]):
        def __init__(self) -> None:
            self.returncode = None

        def poll(self) -> None:
            return None

        def wait(self, timeout: float | None = None) -> int:
            raise subprocess.TimeoutExpired("torchrun", timeout or 0.0)

        def __del__(self, *_: Any) -> None:
            pass

    job = make_job(tmp_path)
    raise_abort(job, "stalled", "rank 0 stood still")
    ended: list[psutil.Process] = []
    monkeypatch.setattr(process_tree, "end", lambda group, grace_s: ended.extend(group))
    supervisor._end(LauncherProcess(Asleep()), RankWatch(job), process_tree.children())
    assert ended == []


def test_node_whose_ranks_wait_for_a_cpu_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches it from outside must not take it for lost; and one that waits for a moment only
    writes nothing."""
    monkeypatch.setattr(supervisor, "TICK_S", 0.0)
    job, waited = make_job(tmp_path), iter(range(0, 100_000, 3))
    events = EventWriter(job.dir.node_events(0))
    watch = RankWatch(job, queued=lambda: float(next(waited)))

    class Launcher(subprocess.Popen[bytes]):
        def __init__(self) -> None:
            self.returncode, self.pid = None, os.getpid()

        def poll(self) -> int | None:
            return 0 if watch.queued_s > 200 else None

        def __del__(self, *_: Any) -> None:
            pass

    assert supervisor._watch(job, LauncherProcess(Launcher()), watch, events) is None
    said = [each["seconds"] for each in read_events(job.dir.node_events(0)).named("queued")]
    assert said[0] >= supervisor.QUEUED_S and 200 - said[-1] < 1.5 * supervisor.QUEUED_S
    assert all(after - before >= supervisor.QUEUED_S for before, after in pairwise(said))


@pytest.mark.parametrize("killed_after", ["launcher_start", "claim"])
def test_task_without_its_slurmstepd_ends_its_ranks(
    tmp_path: Path, leftovers: Leftovers, killed_after: str
) -> None:
    """slurmstepd was killed: Slurm does not end the node's processes any more. It is missed, too,
    if it has ended before the ranks start."""
    daemon, out = tmp_path / "slurmstepd", tmp_path / "out"
    daemon.write_text(SLURMSTEPD)
    daemon.chmod(0o700)
    task = [sys.executable, "-c", LAUNCHER, str(tmp_path), "sleep 100", "[]"]
    task += ["wait"] * (killed_after == "claim")
    started = subprocess.Popen(
        [daemon, out, *task],
        env={**os.environ, leftovers[0]: "1"},
        cwd=Path(__file__).resolve().parents[2],
    )
    wait_for_event(PhaseDir(tmp_path).node_events(0), killed_after)
    started.kill()
    started.wait()
    wait_for("the node's result", lambda: out.read_text().endswith("}\n"))
    result = json.loads(out.read_text())
    assert (result["ok"], result["reason"]) == (False, "slurmstepd")
    assert f"slurmstepd (pid {started.pid} on host " in result["why"]
