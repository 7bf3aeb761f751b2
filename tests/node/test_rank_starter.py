"""A task that srun started runs one rank, and writes down how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, read_json, write_json
from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.node import rank_starter
from pytest_clustersmoke.node.job_entry import REFUSAL
from pytest_clustersmoke.node.launchers import STARTER
from tests.support.harness import ROOT
from tests.support.launched import make_job
from tests.support.waiting import wait_for, wait_for_event

END_WITH_PARENT = "from pytest_clustersmoke.node.process_tree import end_with_parent as end"
SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "SLURM_PROCID")
NUMBERS = {"SLURM_NODEID": "1", "SLURM_LOCALID": "1", "SLURM_PROCID": "3"}
PROGRAM = """
import json, os, signal, sys, time
print(json.dumps({name: os.environ.get(name) for name in sys.argv[2:]}), flush=True)
print("an error", file=sys.stderr, flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
if sys.argv[1] == "stops its task":
    from pathlib import Path
    from pytest_clustersmoke.evidence.process_start import start_s
    from pytest_clustersmoke.evidence.run_directory import PhaseDir, read_json
    from pytest_clustersmoke.evidence.telemetry import EventWriter

    phase = PhaseDir(Path(__file__).parent / "run" / "phases" / "small")
    while read_json(phase.rank_process(3)) is None:  # the task has yet to say which process it is
        time.sleep(0.01)
    events = EventWriter(phase.rank_events(3))
    events.write("start", pid=os.getpid(), pid_started=start_s(os.getpid()))
    os.kill(os.getppid(), signal.SIGSTOP)
    sys.exit(3)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""
# Node 1 of a job, which started none of its tasks itself.
NODE = """
import os, subprocess, sys
from pathlib import Path
from pytest_clustersmoke.evidence.run_directory import PhaseDir, read_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.node import rank_progress
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.supervisor import supervise_ranks

rank_progress.REPORT_S = 240.0
task = subprocess.Popen(sys.argv[2:])
job = NodeJob(read_json(PhaseDir(Path(sys.argv[1])).spec), 1, "n1")
supervise_ranks(job, [], os.environ, EventWriter(job.dir.node_events(1)))
sys.exit(task.wait())
"""


def make_phase(folder: Path, how: str) -> PhaseDir:
    """A phase with two ranks on each of two nodes, whose program ends as `how` says."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    spec = {
        "nodes": 2,
        "ranks_per_node": 2,
        "launcher": "srun",
        "script": str(program),
        "argv": [how, *SHOWN],
    }
    job = make_job(folder / "run" / "phases" / "small", 1, **spec)
    job.dir.run.root.chmod(0o700)
    write_json(job.dir.spec, job.spec)
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321", "SLURM_PROCID": "1"}
    write_json(job.dir.node_environment(1), {**os.environ, **own})
    return job.dir


def start_task(phase: PhaseDir, **options: Any) -> subprocess.Popen[bytes]:
    """The second task on node 1, with the variables that srun gives it."""
    return subprocess.Popen(task_command(phase), env={**os.environ, **NUMBERS}, cwd=ROOT, **options)


def task_command(phase: PhaseDir) -> list[str]:
    return [sys.executable, "-m", STARTER, "--step", str(phase.run.root), "phases/small"]


@pytest.mark.parametrize(("how", "code", "status"), [("0", 0, 0), ("3", 3, 3), ("killed", -9, 137)])
def test_end_of_the_rank_is_written_down(tmp_path: Path, how: str, code: int, status: int) -> None:
    """Its status, or minus its signal; srun sees the status that a shell would."""
    phase = make_phase(tmp_path, how)
    assert start_task(phase).wait(60) == status
    record = read_json(phase.rank_process(3))
    assert record is not None and record["code"] == code


def test_node_awaits_the_exit_status_of_a_dead_rank(tmp_path: Path) -> None:
    """It sees the rank's death before the task, which is stopped here, can write down how."""
    phase = make_phase(tmp_path, "stops its task")
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(phase.root), *task_command(phase)],
        env={**os.environ, **NUMBERS, "SLURM_JOB_ID": "7"},
        cwd=ROOT,
    )
    wait_for_event(phase.node_events(1), "trouble")
    record = read_json(phase.rank_process(3))
    assert record is not None and "code" not in record
    os.kill(record["task_pid"], signal.SIGCONT)
    assert node.wait(60) == 3
    (found,) = read_events(phase.node_events(1)).named("ranks")
    assert [(state["alive"], state["exit_code"]) for state in found["states"]] == [
        (False, None),  # it never started
        (False, 3),
    ]


def test_rank_of_a_step_has_the_variables_of_torchrun(tmp_path: Path) -> None:
    """Those of its node, numbered by the step, and a log of its own."""
    phase = make_phase(tmp_path, "0")
    assert start_task(phase).wait(60) == 0
    folder = phase.rank_logs(1) / "attempt_0" / "1"
    assert json.loads((folder / "stdout.log").read_text()) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "4321",
        "SLURM_PROCID": "3",
    }
    assert (folder / "stderr.log").read_text() == "an error\n"


def test_task_starts_nothing_from_a_directory_in_the_place_of_the_runs(tmp_path: Path) -> None:
    """Others can write in it, so the program that its spec names may be anybody's."""
    phase = make_phase(tmp_path, "0")
    phase.run.root.chmod(0o777)
    task = start_task(phase, stderr=subprocess.PIPE)
    assert task.communicate(timeout=60)[1].decode().startswith(f"{REFUSAL}{phase.run.root} is open")
    assert task.returncode == 1
    assert not phase.rank_process(3).exists() and not phase.rank_logs(1).exists()


def test_task_that_is_ended_ends_its_rank(tmp_path: Path) -> None:
    """srun ends the tasks of a step with SIGTERM."""
    phase = make_phase(tmp_path, "waits")
    task = start_task(phase)
    wait_for("the rank's process", lambda: read_json(phase.rank_process(3)))
    log = phase.rank_logs(1) / "attempt_0" / "1" / "stdout.log"
    wait_for("the rank's first line", lambda: log.read_text())
    task.send_signal(signal.SIGTERM)
    assert task.wait(60) == 128 + signal.SIGTERM
    record = read_json(phase.rank_process(3))
    assert record is not None and record["code"] == -signal.SIGTERM


@pytest.fixture
def own_signals() -> Iterator[None]:
    """What the code under test sets stays in its test: processes inherit an ignored signal."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("own_signals")
def test_task_without_its_node_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's own task may have failed, or the directory is not shared."""
    phase = make_phase(tmp_path, "0")
    phase.node_environment(1).unlink()
    monkeypatch.setattr(rank_starter, "ENVIRONMENT_S", 0.1)
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("SLURM_PROCID", "2")
    with pytest.raises(SystemExit, match=r"environment\.json, which node 1 of the job writes"):
        rank_starter.run_task(phase)

    record = read_json(phase.rank_process(2))
    assert record is not None and record["code"] == 1  # so that the node ends now


@pytest.mark.parametrize("how", ["terminated", "orphaned"])
def test_guard_ends_what_a_launcher_leaves_behind(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], how: str
) -> None:
    """Also if the node's own process was killed, and cannot end anything any more."""
    marker, running = leftovers
    launcher = f"bash -c 'setsid sleep 600 & echo up > {tmp_path}/up; wait' & wait"
    guard = [sys.executable, "-m", STARTER, "--guard", "bash", "-c", launcher]
    node = f"import subprocess, sys; {END_WITH_PARENT}; subprocess.run({guard!r}, preexec_fn=end)"
    command = guard if how == "terminated" else [sys.executable, "-c", node]
    process = subprocess.Popen(command, env={**os.environ, marker: "1"}, cwd=ROOT)
    wait_for("the launcher's processes", (tmp_path / "up").exists)
    process.send_signal(signal.SIGTERM if how == "terminated" else signal.SIGKILL)
    process.wait(60)
    wait_for("the end of all of them", lambda: running() == [])
    assert running() == []


def test_starter_becomes_the_rank(tmp_path: Path) -> None:
    """Other launchers see the end of the rank itself, here by a signal."""
    phase = make_phase(tmp_path, "killed")
    own = {"CLUSTERSMOKE_PHASE_DIR": str(phase.root), "CLUSTERSMOKE_NODE_RANK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", STARTER, str(tmp_path / "program.py"), "killed", "LOCAL_RANK"],
        env={**os.environ, **own, "LOCAL_RANK": "1"},
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, b"", b"")
    log = phase.rank_logs(1) / "attempt_0" / "1" / "stdout.log"
    assert json.loads(log.read_text()) == {"LOCAL_RANK": "1"}
