"""Runs jobs on this machine as N virtual nodes, each with its own session and process group.

submitit cannot re-attach to a local job and reports it as done. So a virtual node is identified by
its pid and start time, and has ended once its whole process tree has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.job_results import read_claim, read_node_result
from ..evidence.process_start import identity
from ..evidence.run_directory import PhaseDir, RunDir, read_json, write_atomically, write_json
from ..evidence.scheduler_record import JobState
from ..evidence.telemetry import parse_finite, parse_int, parse_text, read_events
from ..evidence.whole_files import is_full
from ..node import abort_flag, node_job, process_tree
from . import batch_script
from .backend import Refused, Submission
from .slurm_client import clean_environ, run_command

CANCEL_GRACE_S = 1.5
TOKEN_VARIABLE = "CLUSTERSMOKE_TOKEN"  # the submission of a process
KILLED_GRACE_S = 1.0  # from TERM to KILL, for what a killed launcher left


class _AdoptedProcess:
    """A virtual node that another controller started: its exit status is not known here, and its
    result in the last attempt takes the place of it."""

    def __init__(self, pid: int, started: float, directory: PhaseDir, node_rank: int) -> None:
        self.pid, self._started = pid, started
        self._directory, self._node_rank = directory, node_rank

    def poll(self) -> int | None:
        if process_tree.find_process(self.pid, self._started) is not None:
            return None
        attempt = self._directory.attempts()[-1]
        return 0 if read_node_result(attempt, self._node_rank).ok else 1


@dataclass
class _Node:
    process: subprocess.Popen[bytes] | _AdoptedProcess
    started: float  # 0 if it never was


@dataclass
class _Job:
    nodes: list[_Node]
    directory: PhaseDir
    world_size: int
    submitted: float
    gpus: list[str]
    cancelled: bool = False
    why: str = ""  # if it was cancelled for a reason of its own

    @property
    def node_ranks(self) -> range:
        return range(len(self.nodes))

    def running(self) -> bool:
        return any(node.process.poll() is None for node in self.nodes)


class LocalBackend:
    """Runs jobs on virtual nodes of this machine."""

    chains = False
    avoids = False

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._environ = clean_environ(environ)
        self._jobs: dict[str, _Job] = {}
        self._gpus = _list_gpus(environ) if profile.hardware.device != "cpu" else []
        # One phase always runs; another only if every rank has its own GPU or core.
        self.ranks_at_once: int | None = len(self._gpus) or count_cores()

    def submit(self, submission: Submission, after: str = "") -> str:
        phase, directory = submission.phase, submission.directory
        count = phase.nodes.value
        batch_script.write_call(submission)
        write_atomically(directory.batch_script, self.script(submission))
        job = _Job([], directory, phase.world_size, time.time(), self._free_gpus())
        job_id = _job_id(submission)
        self._jobs[job_id] = job
        try:
            for node_rank in range(count):
                environ = self._environ | {
                    "CUDA_VISIBLE_DEVICES": _node_devices(phase, node_rank, job.gpus),
                    **batch_script.node_variables(phase, node_rank, f"local{node_rank}"),
                    TOKEN_VARIABLE: submission.token,
                }
                process = _start_node(submission, environ)
                node = _Node(process, process_tree.started_at(process.pid))
                job.nodes.append(node)
                record = {"pid": process.pid, "started": node.started}
                write_json(directory.node_process(node_rank), record)
        except OSError as error:
            self.cancel([job_id])
            if is_full(error):
                raise
            raise Refused(f"a virtual node cannot be started: {error}") from error
        return job_id

    def adopt(self, job: Submission, job_id: str) -> None:
        sizes = (job.phase.nodes.value, job.phase.world_size)
        self._adopt(job.directory, *sizes, job_id, job.token)

    def _adopt(
        self, directory: PhaseDir, nodes: int, world_size: int, job_id: str, token: str
    ) -> None:
        """Find the virtual nodes of a job by what was written of their processes, or by the token
        in their environment: the controller may have been killed before it wrote that."""
        found = []
        for rank in range(nodes):
            record = read_json(directory.node_process(rank)) or {}
            pid, started = parse_int(record.get("pid")), parse_finite(record.get("started"))
            if not record and token:
                pid, started = _find_by_token(token, rank)
            process = _AdoptedProcess(pid or 0, started or 0.0, directory, rank)
            found.append(_Node(process, (pid and started) or 0.0))
        gpus = self._free_gpus()
        self._jobs[job_id] = _Job(found, directory, world_size, time.time(), gpus)

    def jobs_of_runs(self, runs: Sequence[RunDir]) -> dict[str, list[str]]:
        return {run.run_id: self._find_running(run) for run in runs}

    def _find_running(self, run: RunDir) -> list[str]:
        left = []
        for phase in sorted(run.root.glob("phases/*")):
            directory = run.phase(phase.name).last_job
            spec = read_json(directory.spec) or {}
            nodes, per_node = parse_int(spec.get("nodes")), parse_int(spec.get("ranks_per_node"))
            job_id = f"local-{run.run_id}-{phase.name}"
            token = parse_text(spec.get("token")) or ""
            self._adopt(directory, nodes or 0, (nodes or 0) * (per_node or 0), job_id, token)
            if self._jobs[job_id].running() or _find_left(self._jobs[job_id]):
                left.append(job_id)
        return left

    def find_submitted(self, jobs: Sequence[Submission]) -> list[str]:
        """The job's id if all its virtual nodes were started. Otherwise those that were are ended,
        and the job counts as not submitted, unless it has claimed the phase, which runs once."""
        (job,) = jobs
        job_id = _job_id(job)
        self.adopt(job, job_id)
        if all(node.started for node in self._jobs[job_id].nodes):
            return [job_id]
        self.cancel([job_id])
        claim = read_claim(job.directory)
        if claim is not None and claim.token == job.token:
            self._jobs[job_id].why = "its controller was killed before it had started every node"
            return [job_id]
        del self._jobs[job_id]
        return []

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return {
            job_id: self._state(self._jobs[job_id]) for job_id in job_ids if job_id in self._jobs
        }

    def _state(self, job: _Job) -> JobState:
        codes = [node.process.poll() for node in job.nodes]
        names = f"local[0-{len(codes) - 1}]" if len(codes) > 1 else "local0"
        at = job.submitted
        if any(code is None for code in codes):
            _abort_after_failed_node(job, codes)
            return JobState("running", "RUNNING", "", names, at, at)
        places = job.directory.attempts()
        if not all(p.node_result(n).exists() for p in places for n in job.node_ranks):
            # A launcher that was killed, perhaps while it held the ranks for the dumps.
            process_tree.end(_find_left(job), KILLED_GRACE_S)
        raw = "COMPLETED" if not any(codes) else "CANCELLED" if job.cancelled else "FAILED"
        return JobState("ended", raw, job.why, names, at, at)

    def details(self, job_id: str, state: JobState, nodes: str) -> None:
        return None  # no scheduler is involved

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """End the virtual nodes and all their ranks, also those that left the process tree."""
        jobs = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        running = [node for job in jobs for node in job.nodes if node.process.poll() is None]
        trees = [process for node in running for process in process_tree.tree(node.process.pid)]
        for job in jobs:
            job.cancelled = True
        for node in running:
            process_tree.send(node.process.pid, node.started, signal.SIGTERM)
        deadline = time.monotonic() + CANCEL_GRACE_S
        while time.monotonic() < deadline and any(node.process.poll() is None for node in running):
            time.sleep(0.05)
        for job in jobs:
            trees += _find_left(job)
        process_tree.end(trees, 0.0)
        return True

    def start_now(self, job_id: str) -> None:
        """Nothing to do: no local job is requeued."""

    def cancel_named(self, job: Submission) -> None:
        """Nothing to do: the id of a local job is known as soon as it starts."""

    def close(self) -> None:
        """Nothing to do: nothing stays open."""

    def script(self, job: Submission) -> str:
        nodes = job.phase.nodes.value
        comment = f"Run once for each of {nodes} virtual nodes of this machine."
        return batch_script.make_script(job, self._profile, [comment])

    def _free_gpus(self) -> list[str]:
        busy = {
            gpu
            for job in self._jobs.values()
            if job.running()
            for gpu in job.gpus[: job.world_size]
        }
        return [gpu for gpu in self._gpus if gpu not in busy]


def _find_by_token(token: str, node_rank: int) -> tuple[int, float]:
    """The process of a virtual node, and when it started: the first of those with this token and
    node in their environment, which the others have from it. Zeros if there is none."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ() if process.uids().real == os.getuid() else {}
        except (psutil.Error, OSError, ValueError):
            continue
        node = environ.get(node_job.RANK_VARIABLE)
        if (environ.get(TOKEN_VARIABLE), node) == (token, str(node_rank)):
            found.append((process_tree.started_at(process.pid), process.pid))
    started, pid = min(found, default=(0.0, 0))
    return pid, started


def _job_id(job: Submission) -> str:
    return f"local-{job.directory.run.run_id}-{job.phase.name}"


def _start_node(job: Submission, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a virtual node in its own session and process group, so that a Ctrl-C at the terminal
    does not end it directly. Raises OSError."""
    log = job.directory.submitit / f"{environ['SUBMITIT_LOCAL_JOB_ID']}_0_log"
    with log.with_suffix(".out").open("ab") as out, log.with_suffix(".err").open("ab") as err:
        return subprocess.Popen(
            batch_script.guarded_command(job),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def _node_devices(phase: Phase, node_rank: int, gpus: list[str]) -> str:
    """CUDA_VISIBLE_DEVICES of a virtual node: GPUs of its own, or one that all nodes share."""
    per_node = phase.gpus_per_node.value
    if len(gpus) >= phase.world_size:
        return ",".join(gpus[node_rank * per_node : (node_rank + 1) * per_node])
    return ",".join(gpus[:1]) if per_node == 1 else ""


def count_cores() -> int:
    """The number of cores this process may use, by its affinity and its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # cgroup v1, or no quota (`max`)
        return allowed


def _abort_after_failed_node(job: _Job, codes: list[int | None]) -> None:
    """End all nodes when one failed and left no result, as `srun --kill-on-bad-exit` does."""
    places = job.directory.attempts()
    place = places[-1]
    for node_rank, code in enumerate(codes):
        results = [read_node_result(each, node_rank) for each in places]
        # A node that failed in an attempt before has a result there, and none later.
        has_ended = bool(results[-1].result) or any(r.result and not r.stopped for r in results)
        if code and not has_ended:
            why = f"the node's launcher ended with status {code} and left no result"
            cause = {"reason": "launcher", "why": why, "rank": None, "gone": node_rank}
            with contextlib.suppress(OSError):  # a full disk; the others' own watch remains
                abort_flag.raise_flag(place, node_rank, f"local{node_rank}", cause)
            return


def _find_left(job: _Job) -> list[psutil.Process]:
    """Find what the launchers started and still runs: torchrun, say, with all below it, and the
    ranks, each of which it starts in a session of its own."""
    starts = [
        start
        for place in job.directory.attempts()
        for start in (
            *(read_events(place.node_events(n)).last("launcher_start") for n in job.node_ranks),
            *(read_events(place.rank_events(n)).last("start") for n in range(job.world_size)),
        )
    ]
    named = [process for start in starts if start and (process := identity(start)) is not None]
    running = [found for each in named if (found := process_tree.find_process(*each)) is not None]
    return [process for found in running for process in process_tree.tree(found.pid)]


def count_places(profile: Profile, environ: Mapping[str, str]) -> int:
    """How many ranks can run at the same time with a GPU or a core each."""
    return len(_list_gpus(environ) if profile.hardware.device != "cpu" else []) or count_cores()


def _list_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs this user may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    tool = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if tool is None:
        return []
    try:
        answer = run_command([tool, "-L"], environ)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in answer.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))]
