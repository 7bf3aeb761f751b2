"""A real Slurm with two nodes is started, used and ended, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_paths, lab_processes, lab_state
from tests.support.load import Pressure
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.lab
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., lab.Lab]

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=2 --cpus-per-task=4 --mem=100G --exclusive
#SBATCH --time=5 --no-requeue --comment=a:b --signal=USR2@90 --output=job.out
srun --cpus-per-task=4 bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK'
"""


def processes_under(path: Path) -> list[str]:
    """Every process whose command, environment or working directory contains a path."""
    commands = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            directory = str((entry / "cwd").readlink())
        except OSError:
            continue
        if os.fsencode(path) in text or directory.startswith(str(path)):
            commands.append(text.replace(b"\0", b" ").decode(errors="replace")[:200])
    return commands


def wait_for_job(command: Run, slurm: lab.Lab, job: str, wanted: str) -> str:
    """Wait until a job is in the wanted state; return the last state seen."""
    deadline = time.monotonic() + PATIENCE_S
    seen = ""
    while time.monotonic() < deadline:
        seen = command("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", lab=slurm).stdout.strip()
        if seen == wanted:
            return seen
        time.sleep(0.05)
    return seen


def submit(command: Run, slurm: lab.Lab, *words: str) -> str:
    answer = command("sbatch", "--parsable", *words, lab=slurm)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_job_of_two_nodes_sees_its_gpus(start: Start, command: Run, home: Path) -> None:
    """A batch job's srun runs once on each node, with two GPUs and the requested CPUs."""
    slurm = start()
    (home / "job.sh").write_text(SCRIPT)
    job = submit(command, slurm, "job.sh")
    assert wait_for_job(command, slurm, job, "COMPLETED") == "COMPLETED"
    lines = sorted((home / "job.out").read_text().splitlines())
    assert lines == ["node0 0,1 4", "node1 0,1 4"]
    refused = command("sbatch", "--gpus-per-node=3", "--wrap=true", lab=slurm)
    assert "Requested node configuration is not available" in refused.stderr


def test_high_requeues_main_and_cancelling_is_quick(start: Start, command: Run) -> None:
    """A job of `high` preempts one of `main`, which is requeued; scancel ends it quickly.
    Of up to three cancellations the quickest counts, since others use this machine, without the
    time in which work waited for a core."""
    slurm = start()
    words = ("--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=exec sleep 600")
    low = submit(command, slurm, *words)
    assert wait_for_job(command, slurm, low, "RUNNING") == "RUNNING"
    taken: list[float] = []
    while not taken or (taken[-1] >= 5 and len(taken) < 3):
        high = submit(command, slurm, "--partition=high", *words)
        assert wait_for_job(command, slurm, high, "RUNNING") == "RUNNING"
        assert wait_for_job(command, slurm, low, "PENDING") == "PENDING"
        with Pressure() as pressure:
            began = time.time()
            command("scancel", high, lab=slurm)
            assert wait_for_job(command, slurm, high, "CANCELLED") == "CANCELLED"
            taken.append(pressure.own_s(began, time.time()))
    assert min(taken) < 5


def test_down_leaves_nothing(start: Start, clustersmoke: Run, command: Run, home: Path) -> None:
    """After `down` with a job running no process, socket directory, mount or file is left."""
    slurm = start()
    record = lab_state.list_running()[0]
    # A process outside its job's session, which only its environment identifies.
    job = submit(command, slurm, "--output=/dev/null", "--wrap=setsid sleep 600 & exec sleep 600")
    assert wait_for_job(command, slurm, job, "RUNNING") == "RUNNING"
    assert processes_under(home)
    ended = clustersmoke("lab", "down")
    assert (ended.returncode, ended.stderr) == (0, "lab t: ended\n")
    assert processes_under(home) == []
    assert not any(process.alive for process in record.daemons)
    assert list(lab_paths.labs_home().iterdir()) == []
    assert not record.files.run.exists()
    assert str(home) not in Path("/proc/mounts").read_text()


def test_two_labs_do_not_clash(start: Start, clustersmoke: Run, command: Run) -> None:
    """Two labs run side by side; neither sees the other's jobs, and `down` ends only one."""
    first, second = start("one"), start("two")
    job = submit(command, second, "--output=/dev/null", "--wrap=true")
    assert wait_for_job(command, second, job, "COMPLETED") == "COMPLETED"
    assert command("squeue", "-h", "-t", "all", lab=first).stdout == ""
    which = clustersmoke("lab", "env")
    assert (which.returncode, which.stdout) == (2, "")
    assert "2 labs are running (one, two)" in which.stderr
    assert clustersmoke("lab", "down").returncode == 2
    assert clustersmoke("lab", "down", "--name", "one").returncode == 0
    assert command("sinfo", "-h", lab=second).returncode == 0
    assert clustersmoke("lab", "env").stdout == f"export SLURM_CONF={second.slurm_conf}\n"


def test_nothing_listens_beyond_loopback(start: Start) -> None:
    """Every TCP port that a daemon of the lab listens on is bound to 127.0.0.1."""
    start()
    inodes = set()
    for process in lab_state.list_running()[0].daemons:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(
                FileNotFoundError
            ):  # closed meanwhile; listening sockets stay open
                inodes.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                listening.append(words[1].partition(":")[0])
    assert len(listening) == 3
    assert set(listening) == {"0100007F"}


def test_name_is_taken_once(start: Start, clustersmoke: Run) -> None:
    """A second lab of the same name is refused with advice; the first keeps running."""
    start()
    again = clustersmoke("lab", "up", "--name", "t")
    assert again.returncode == 2
    assert "lab t is already up; end it with `clustersmoke lab down --name t`" in again.stderr
    assert clustersmoke("lab", "status").returncode == 0


def test_status_names_the_dead_daemon(start: Start, clustersmoke: Run) -> None:
    """If one slurmd was killed the lab is partly up, and status names the daemon."""
    start()
    victim = [
        daemon for daemon in lab_state.list_running()[0].daemons if daemon.role == "slurmd-node1"
    ]
    assert lab_processes.end(victim, 5.0) == []
    status = clustersmoke("lab", "status")
    assert status.returncode == 1
    assert "t: partly up" in status.stdout
    assert "slurmd-node1" in status.stdout


def test_lab_in_the_users_directory(start: Start, clustersmoke: Run, home: Path) -> None:
    """With --dir all files are in that directory, and `down` removes it; a directory that is not
    empty is refused."""
    mine = home / "mine"
    slurm = start(directory=mine)
    assert slurm.slurm_conf == mine / "slurm.conf"
    assert lab.find_lab({}).slurm_conf == slurm.slurm_conf
    assert clustersmoke("lab", "down").returncode == 0
    assert not mine.exists()
    mine.mkdir()
    (mine / "precious").touch()
    with pytest.raises(lab.LabError, match="an empty directory"):
        start(directory=mine)
    assert (mine / "precious").exists()
    assert clustersmoke("lab", "status").stdout.startswith("no labs")


def test_long_path_gets_short_sockets(start: Start, home: Path) -> None:
    """A lab below a path too long for sockets starts; its socket directory is removed with it."""
    start(directory=home / ("long" * 25))
    record = lab_state.list_running()[0]
    assert record.files.run.parent != record.files.root
    lab.stop_lab("t")
    assert not record.files.run.exists()
