"""What starts this node's ranks: the launcher's processes here, or tasks that node 0 started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import psutil

from ..evidence.run_directory import list_directory, read_json
from . import process_tree
from .node_job import NodeJob

READ_S = 0.25  # between two looks for the ends of tasks, in a directory that may be slow


class Agent(Protocol):
    """What starts this node's ranks, from its start to its end."""

    spans_nodes: bool  # whether ranks of other nodes end with it

    @property
    def pid(self) -> int | None:
        """None if it is another node's process."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, or minus the signal's number; None while it runs."""

    def poll(self) -> int | None:
        """Look whether it has ended; returns `returncode`."""

    def wait(self, timeout: float) -> object:
        """Wait for its end. Raises subprocess.TimeoutExpired."""

    def hold(self, ranks: Collection[int]) -> None:
        """Keep it from ending the other ranks once one has ended, until `release`. `ranks` are the
        pids of known ranks."""

    def release(self) -> None:
        """Let it go on."""

    def ranks(self) -> dict[int, psutil.Process]:
        """Rank -> its process, as far as the agent has started it here."""

    def pids(self) -> set[int]:
        """Of its own processes on this node and of the ranks, as far as they run."""

    def processes(self) -> set[psutil.Process]:
        """Running processes of the agent that are not descendants of this one."""

    def exit_code(self, rank: int, pid: int, started: float) -> int | None:
        """How that rank ended, as torchrun counts; None if that is not known (yet)."""

    def will_report(self, rank: int) -> bool:
        """Whether a process that still runs will say how that rank ended."""


class LauncherProcess:
    """The launcher's process on this node; its ranks are descendants."""

    spans_nodes = False

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._held: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float) -> object:
        return self._process.wait(timeout)

    def hold(self, ranks: Collection[int]) -> None:
        # The first at once: it may be about to end them. DeepSpeed's has two more below it.
        for rank, process in _walk(self.pid, ranks):
            if rank is None:
                with contextlib.suppress(psutil.Error):
                    process.suspend()
                    self._held.append(process)

    def release(self) -> None:
        for process in self._held:
            with contextlib.suppress(psutil.Error):
                process.resume()
        self._held = []

    def ranks(self) -> dict[int, psutil.Process]:
        return {rank: process for rank, process in _walk(self.pid, ()) if rank is not None}

    def pids(self) -> set[int]:
        return {process.pid for _, process in _walk(self.pid, ())}

    def processes(self) -> set[psutil.Process]:
        return set()

    def exit_code(self, rank: int, pid: int, started: float) -> int | None:
        return self.poll() if pid == self.pid else process_tree.exit_code(pid, started)

    def will_report(self, rank: int) -> bool:
        """The kernel says it at once, or nobody does."""
        return False


class StepTasks:
    """The tasks of a step that `srun` on node 0 started: on this node, one for each rank. Each
    writes down its own process and how its rank ended."""

    def __init__(self, job: NodeJob, srun: subprocess.Popen[bytes] | None) -> None:
        self._job, self._srun = job, srun
        self.spans_nodes = srun is not None
        self._returncode: int | None = None
        self._read_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._srun.pid if self._srun else None

    @property
    def returncode(self) -> int | None:
        return self._returncode

    def poll(self) -> int | None:
        """The end of srun, or of all tasks here; or the first of them that failed, since srun waits
        for the others."""
        if self._returncode is None and self._srun is not None:
            self._returncode = self._srun.poll()
        if self._returncode is None and time.monotonic() >= self._read_at:
            self._read_at = time.monotonic() + READ_S
            self._read_ends()
        return self._returncode

    def _read_ends(self) -> None:
        records = self._records()
        codes = [code for record in records.values() if type(code := record.get("code")) is int]
        if len(records) == self._job.local_ranks:  # each has read it, and it may hold a token
            with contextlib.suppress(OSError):
                self._job.dir.node_environment(self._job.node_rank).unlink(missing_ok=True)
        if any(codes):
            self._returncode = next(filter(None, codes))
        elif self._srun is None and len(codes) == self._job.local_ranks:
            self._returncode = 0

    def wait(self, timeout: float) -> object:
        return self._srun.wait(timeout) if self._srun else None

    def hold(self, ranks: Collection[int]) -> None:
        """srun is asked to leave the other tasks alone."""

    def release(self) -> None:
        pass

    def ranks(self) -> dict[int, psutil.Process]:
        return self._find("pid")

    def pids(self) -> set[int]:
        own = {self._srun.pid} if self._srun else set()
        return own | {process.pid for process in self.processes()}

    def processes(self) -> set[psutil.Process]:
        tasks = self._find("task_pid").values()  # the ranks' parents
        return {process for task in tasks for process in process_tree.tree(task.pid)}

    def exit_code(self, rank: int, pid: int, started: float) -> int | None:
        code = (read_json(self._job.dir.rank_process(rank)) or {}).get("code")
        return code if type(code) is int else None

    def will_report(self, rank: int) -> bool:
        return rank in self._find("task_pid")

    def _find(self, key: str) -> dict[int, psutil.Process]:
        """Rank -> the process that its record names, if it runs and is of this job."""
        found = {}
        for rank, record in self._records().items():
            if "code" in record:  # the rank has ended, and its task is about to
                continue
            named = record.get(key), record.get(f"{key}_started")
            match named:
                case int(pid), float(started):
                    process = process_tree.find_process(pid, started)
                    if process and _is_of_this_job(process):
                        found[rank] = process
        return found

    def _records(self) -> dict[int, dict[str, Any]]:
        paths = {rank: self._job.dir.rank_process(rank) for rank in self._job.ranks}
        list_directory(self._job.dir.rank_process(0).parent)  # clears NFS's cache of missing files
        records = {rank: read_json(path) for rank, path in paths.items()}
        return {rank: record for rank, record in records.items() if record is not None}


def start_agent(job: NodeJob, command: list[str], env: Mapping[str, str]) -> Agent:
    """Start the launcher on this node. Only node 0 starts a step, which has tasks on all nodes."""
    is_step = job.spec.get("launcher") == "srun"
    if is_step and job.node_rank:
        return StepTasks(job, None)
    with job.dir.launcher_log(job.node_rank).open("ab") as log:
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=process_tree.prepare_child,
        )
    return StepTasks(job, process) if is_step else LauncherProcess(process)


def _is_of_this_job(process: psutil.Process) -> bool:
    """Whether Slurm started the process in this job, as it started this one."""
    try:
        job = process.environ().get("SLURM_JOB_ID")
    except psutil.Error:
        return False
    return job is not None and job == os.environ.get("SLURM_JOB_ID")


def _walk(pid: int, ranks: Collection[int]) -> Iterator[tuple[int | None, psutil.Process]]:
    """The running processes of a launcher, from this one down: None and each of its own, or a
    rank's number and its process. A rank has its number in its environment, and a launcher has
    none; what a rank started belongs to the rank. The pids in `ranks` are left out, since a program
    may overwrite its environment."""
    left = [process] if (process := process_tree.find_process(pid)) else []
    while left:
        process = left.pop(0)
        if process.pid in ranks:
            continue
        with contextlib.suppress(psutil.Error):
            number = process.environ().get("RANK", "")
            if number.isdecimal():
                yield int(number), process
                continue
            yield None, process
            left += [child for child in process.children() if process_tree.is_running(child)]
