"""Runs each phase as a step of one allocation, on nodes that no other step uses.

Slurm queues steps behind each other unless they are pinned to nodes, so the nodes are chosen here:
a phase waits, in the order of submission, until enough nodes of the allocation are free. A step is
an srun of ours, in a session of its own. `--overlap`: a shell that runs in a step of the allocation
holds its CPUs and GPUs, and no step could start beside it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir, write_atomically
from ..evidence.scheduler_record import (
    NODE_FAILED,
    OUT_OF_MEMORY,
    JobState,
    ScheduledJob,
    SchedulerRecord,
)
from . import batch_script
from .backend import Submission
from .job_watch import read_messages
from .outcome import NOT_STARTED, OUT_OF_TIME
from .slurm_client import SlurmClient, SlurmUnavailable
from .slurm_jobs import Allocation, parse_step_end, parse_step_refusal
from .step_request import StepRequest

# sbatch's options that also concern a step; the others say which job to run, or where.
STEP_OPTIONS = {
    *("cpus_per_task", "cpu_freq", "gpu_freq", "gpu_bind", "hint", "mem_bind", "network"),
    *("profile", "propagate", "threads_per_core"),
}
CONTAINER = "container"  # all of Slurm's and pyxis' options with this start
CANCEL_GRACE_S, KILLED_WITHIN_S, POLL_S = 1.5, 0.5, 0.05
# Slurm has this long for each answer when steps are ended; then their sruns are, which end them.
SILENT_S = 0.7
MAX_LOG = 2**16
# Outside of an allocation, and until the nodes are chosen, a dry run shows these.
JOB_VARIABLE, NODES_VARIABLE = "$SLURM_JOB_ID", "$NODES"


@dataclass
class _Step:
    """A phase's step: `process` is its srun, None until it starts."""

    job: Submission
    submitted: float
    waits_for: str = ""
    nodes: tuple[str, ...] = ()
    started: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False
    end: JobState | None = None

    @property
    def phase(self) -> Phase:
        return self.job.phase

    @property
    def directory(self) -> PhaseDir:
        return self.job.directory

    @property
    def name(self) -> str:
        return self.job.words[0]

    @property
    def waits(self) -> bool:
        return self.process is None and self.end is None and not self.cancelled

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def state(self, kind: str, raw: str, reason: str = "") -> JobState:
        started = self.started if self.process is not None else None
        return JobState(kind, raw, reason, ",".join(self.nodes), self.submitted, started)


class AllocationBackend:
    """Runs phases as steps of the allocation in which pytest runs."""

    ranks_at_once: int | None = None
    chains = False
    avoids = False

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._client = SlurmClient(environ)
        self._job_id = environ.get("SLURM_JOB_ID", "")
        # The step of the user's own shell, in which pytest runs.
        self._own_step = f"{self._job_id}.{environ.get('SLURM_STEP_ID', '')}"
        self._steps: dict[str, _Step] = {}
        self._starting = threading.Lock()  # nothing starts once it was cancelled

    def submit(self, job: Submission, after: str = "") -> str:
        step_id = f"{self._job_id}.{job.phase.name}"
        batch_script.write_call(job)
        self._steps[step_id] = _Step(job, time.time())
        return step_id

    def adopt(self, job: Submission, job_id: str) -> None:
        raise NotImplementedError("runs of this backend cannot be attached; the suite refuses it")

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        try:
            allocation = self._client.allocation(self._job_id)
            self._start_waiting(allocation)
        except SlurmUnavailable:
            return {}
        states = {job_id: self._state(self._steps[job_id], allocation) for job_id in job_ids}
        return {job_id: state for job_id, state in states.items() if state is not None}

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        """As long as the allocation goes on, its own record says nothing about the step."""
        try:
            goes_on = self._client.allocation(self._job_id).runs
        except SlurmUnavailable:
            goes_on = False
        asked = replace(state, raw="FAILED") if goes_on else state  # else accounting is awaited
        record = self._client.job_record(self._job_id, asked, nodes)
        if record is None or not goes_on:
            return record
        record = replace(record, job=ScheduledJob(), accounting=())
        return None if record == SchedulerRecord() else record

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """End these steps and never the allocation: first by SIGTERM, so that nodes can end their
        ranks and write their results, then by force."""
        with self._starting:
            steps = [self._steps[job_id] for job_id in job_ids if job_id in self._steps]
            for step in steps:
                step.cancelled = True
        if any(step.runs() for step in steps):
            self._signal(steps, "--signal=TERM")
            _wait_for_end(steps, CANCEL_GRACE_S)
        if any(step.runs() for step in steps):
            self._signal(steps)
            for step in steps:
                if step.process is not None and step.runs():
                    step.process.terminate()  # srun then ends its step by force
            _wait_for_end(steps, KILLED_WITHIN_S)
        return not any(step.runs() for step in steps)

    def start_now(self, job_id: str) -> None:
        """Nothing to do: a step is never requeued."""

    def cancel_named(self, job: Submission) -> None:
        """Nothing to do: the id of a step is known before it starts."""

    def close(self) -> None:
        """Nothing to do: nothing stays open."""

    def script(self, job: Submission) -> str:
        return self._script(job, ())

    def _signal(self, steps: Iterable[_Step], *options: str) -> None:
        """Signal these steps, and those that their launchers started under the same name."""
        names = {step.name for step in steps if step.runs()}
        try:
            listed = self._client.steps(self._job_id, SILENT_S)
        except SlurmUnavailable:
            listed = []
        found = [step for step in listed if step.name in names]
        if found:
            ids = [step.step_id for step in found]
            if not self._client.cancel(*options, *ids, timeout_s=SILENT_S):
                found = []
        for step in steps:  # its step is not created yet, or Slurm does not answer
            if step.process is not None and step.name not in {other.name for other in found}:
                step.process.terminate()

    def _start_waiting(self, allocation: Allocation) -> None:
        """Start the steps whose turn it is, as long as there are free nodes."""
        waiting = [step for step in self._steps.values() if step.waits]
        if not waiting or not allocation.runs:
            return
        others = [
            step for step in self._client.steps(self._job_id) if step.step_id != self._own_step
        ]
        busy = {name for step in others for name in step.nodes}
        busy |= {name for step in self._steps.values() if step.runs() for name in step.nodes}
        for step in waiting:
            request = StepRequest(step.phase, self._profile)
            if misfit := request.find_misfit(allocation, time.time()):
                step.end = step.state("ended", NOT_STARTED, misfit.what)
                continue
            nodes = request.choose_nodes(allocation, busy)
            if not nodes:
                step.waits_for = "too few nodes of the allocation are free"
                return
            self._start(step, nodes)
            busy |= {*nodes}

    def _start(self, step: _Step, nodes: tuple[str, ...]) -> None:
        with self._starting:
            if step.cancelled:
                return
            step.nodes = nodes
            script = self._script(step.job, nodes)
            try:
                write_atomically(step.directory.batch_script, script)
                step.process, step.started = self._start_srun(step.job, nodes), time.time()
            except OSError as error:
                step.end = step.state("ended", NOT_STARTED, f"srun cannot be started: {error}")

    def _start_srun(self, job: Submission, nodes: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """Start srun in a session of its own, so that a Ctrl-C at the terminal does not end it
        directly. Raises OSError."""
        with (
            _log(job.directory, self._job_id, "out").open("ab") as out,
            _log(job.directory, self._job_id, "err").open("ab") as err,
        ):
            return subprocess.Popen(
                self._srun(job, nodes),
                env=self._client.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _state(self, step: _Step, allocation: Allocation) -> JobState | None:
        """The state of a step; None while it is not known how it ended."""
        if step.end is None and step.process is None:
            if step.cancelled:
                step.end = step.state("ended", "CANCELLED")
            elif allocation.state.kind == "running":  # perhaps COMPLETING: its last state follows
                return step.state("pending", "PENDING", step.waits_for)
            else:
                step.end = step.state("ended", NOT_STARTED, _end_of(allocation))
        elif step.end is None and step.runs():
            return step.state("running", "RUNNING")
        elif step.end is None:
            with contextlib.suppress(SlurmUnavailable):
                step.end = self._judge_end(step)
        return step.end

    def _judge_end(self, step: _Step) -> JobState | None:
        """How a step ended whose srun has ended; None while the allocation completes. Raises
        SlurmUnavailable."""
        assert step.process is not None
        if step.process.returncode == 0:
            return step.state("ended", "COMPLETED")
        if step.cancelled:
            return step.state("ended", "CANCELLED")
        log = _read_log(_log(step.directory, self._job_id, "err"))
        events = {message.event for message in read_messages(step.directory)}
        refusal, ending = parse_step_refusal(log), parse_step_end(log)
        if NODE_FAILED in events:
            return step.state("ended", "NODE_FAIL", f"in allocation {self._job_id}")
        if refusal or ending == "CANCELLED":
            allocation = self._client.allocation(self._job_id)  # as it is after the step's end
            if not allocation.runs and allocation.state.kind == "running":
                return None
            if refusal:
                why = refusal if allocation.runs else _end_of(allocation)
                return step.state("ended", NOT_STARTED, why)
            if allocation.runs:
                why = f"only this step; allocation {self._job_id} goes on"
                return step.state("ended", "CANCELLED", why)
            if allocation.state.raw == "TIMEOUT":
                why = f"allocation {self._job_id} ended at its time limit"
                return step.state("ended", OUT_OF_TIME, why)
            return step.state("ended", _raw_of(allocation), f"with allocation {self._job_id}")
        return step.state("ended", "OUT_OF_MEMORY" if OUT_OF_MEMORY in events else "FAILED")

    def _srun(self, job: Submission, nodes: tuple[str, ...]) -> list[str]:
        phase = job.phase
        options = {
            key: setting.value
            for key, setting in phase.slurm.items()
            if (key in STEP_OPTIONS or key.startswith(CONTAINER))
            and setting.value is not None
            and setting.value is not False
        }
        if self._profile.hardware.gpu != "none":
            options["gpus_per_node"] = phase.gpus_per_node.value
        flags = {key.replace("_", "-"): value for key, value in options.items()}
        return [
            *("srun", f"--jobid={self._job_id or JOB_VARIABLE}", "--overlap"),
            f"--job-name={job.words[0]}",
            *(f"--nodes={phase.nodes.value}", f"--ntasks={phase.nodes.value}"),
            *("--ntasks-per-node=1", f"--nodelist={','.join(nodes) or NODES_VARIABLE}"),
            *("--export=ALL", "--kill-on-bad-exit=1", "--unbuffered", "--input=none"),
            *(f"--{key}" if value is True else f"--{key}={value}" for key, value in flags.items()),
            *batch_script.guarded_command(job),
        ]

    def _script(self, job: Submission, nodes: tuple[str, ...]) -> str:
        line = shlex.join(self._srun(job, nodes))
        for name in (JOB_VARIABLE, NODES_VARIABLE):
            line = line.replace(f"'--jobid={name}'", f"--jobid={name}")
            line = line.replace(f"'--nodelist={name}'", f"--nodelist={name}")
        when = "" if nodes else f" {NODES_VARIABLE}: nodes that are free when the phase starts."
        comments = [f"Run once on each node by the following command.{when}", line]
        return batch_script.make_script(job, self._profile, comments, "slurm")


def _wait_for_end(steps: Iterable[_Step], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and any(step.runs() for step in steps):
        time.sleep(POLL_S)


def _log(directory: PhaseDir, job_id: str, kind: str) -> Path:
    """srun's own output, with that of all its tasks."""
    return directory.submitit / f"{job_id}_srun.{kind}"


def _read_log(path: Path) -> str:
    try:
        with path.open(errors="replace") as log:
            return log.read(MAX_LOG)
    except OSError:
        return ""


def _raw_of(allocation: Allocation) -> str:
    """Slurm's word for the end of an allocation; for a step, an allocation that was given back
    counts as cancelled."""
    ended, raw = allocation.state.kind == "ended", allocation.state.raw
    return raw if ended and raw not in ("COMPLETED", "FAILED") else "CANCELLED"


def _end_of(allocation: Allocation) -> str:
    how = allocation.state.raw or "Slurm no longer knows it"
    return f"allocation {allocation.job_id} ended ({how}) before the phase started"
