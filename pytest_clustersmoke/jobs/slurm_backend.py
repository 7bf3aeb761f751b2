"""Runs each phase as one Slurm job of N nodes with one task each, which starts the launcher.

A phase that names an allocation (ALLOCATION) is a step of that instead.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from ..config.hostlist import read_host_option
from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import RunDir, write_atomically
from ..evidence.scheduler_record import JobState, SchedulerRecord
from . import batch_script
from .allocation_backend import AllocationBackend
from .backend import ANY_JOB, Refused, SchedulerSilent, Submission, Words, names_run
from .slurm_client import SlurmClient, SlurmUnavailable

ALLOCATION = "jobid"  # srun's option: the job whose step a phase is to be
SUBMITIT_SIGNAL = "#SBATCH --signal=USR2@"
# Slurm asks every process of the step to stop, also a Python that is only starting, which would end
# by it. It starts with the signal blocked, and `run_node` finds it pending. An `env` of coreutils
# before 8.31 cannot block it: then it is ignored until `run_node` has begun.
KEEP_SIGNAL = """trap "" USR1
env --block-signal=USR1 true 2>/dev/null && set -- env --block-signal=USR1 "$@"
exec "$@\""""


class SlurmBackend:
    """Submits jobs with sbatch; one squeue and one scancel serve all jobs."""

    ranks_at_once: int | None = None
    chains = True
    avoids = True

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._client = SlurmClient(environ)
        self._words: dict[str, Words] = {}  # by id, of the jobs of this run
        self._allocations: dict[str, AllocationBackend] = {}  # that this process runs steps in

    def submit(self, job: Submission, after: str = "") -> str:
        if allocation := job.phase.slurm.get(ALLOCATION):
            return self._in_allocation(str(allocation.value)).submit(job)
        batch_script.write_call(job)
        write_atomically(job.directory.batch_script, self._script(job, after))
        return self._sbatch([job])[0]

    def submit_array(self, jobs: Sequence[Submission], at_once: int, after: str = "") -> list[str]:
        first = jobs[0]
        array = first.directory.array
        array.mkdir(mode=0o700, exist_ok=True)  # it does if Slurm could not accept it before
        for job in jobs:
            batch_script.write_call(job)
            link = array / str(job.index)
            link.unlink(missing_ok=True)
            link.symlink_to(Path(os.path.relpath(job.directory.root, array)))
        script = self._script(first, after, len(jobs), at_once)
        for job in jobs:
            write_atomically(job.directory.batch_script, script)
        return self._sbatch(jobs)

    def _sbatch(self, jobs: Sequence[Submission]) -> list[str]:
        """Submit the script of the first of these jobs for all of them; return the id of each."""
        script, check = jobs[0].directory.batch_script, jobs[0].check
        return self._note(jobs, self._client.submit(script, check=check))

    def _in_allocation(self, job_id: str) -> AllocationBackend:
        environ = {**self._client.environ, "SLURM_JOB_ID": job_id}
        return self._allocations.setdefault(job_id, AllocationBackend(self._profile, environ))

    def adopt(self, job: Submission, job_id: str) -> None:
        self._words[job_id] = job.words

    def _note(self, jobs: Sequence[Submission], job_id: str) -> list[str]:
        """Note what Slurm calls these jobs, which it took under this id; return the id of each."""
        self._words |= {job.own_id(job_id): job.words for job in jobs}
        return [job.own_id(job_id) for job in jobs]

    def jobs_of_runs(self, runs: Sequence[RunDir]) -> dict[str, list[str]]:
        try:
            listed = self._client.list_jobs()
        except SlurmUnavailable as error:
            raise SchedulerSilent(str(error)) from None
        return {
            run.run_id: [job_id for job_id, words in listed.items() if names_run(words, run.run_id)]
            for run in runs
        }

    def find_submitted(self, jobs: Sequence[Submission]) -> list[str] | None:
        try:
            job_id = self._client.find_job(*jobs[0].words)
        except SlurmUnavailable:
            return None
        return self._note(jobs, job_id) if job_id else []

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        jobs, steps = _split_ids(job_ids)
        states = self._client.job_states(jobs, self._words)
        for allocation, step_ids in steps.items():
            if own := self._allocations.get(allocation):
                states |= own.states(step_ids)
            elif (state := self._ask_allocation(allocation)) is not None:
                states |= dict.fromkeys(step_ids, state)
        return states

    def _ask_allocation(self, job_id: str) -> JobState | None:
        """The state of the steps that another process ran in an allocation: they end with it; None
        if Slurm does not answer."""
        try:
            allocation = self._client.allocation(job_id)
        except SlurmUnavailable:
            return None
        if allocation.runs:
            return JobState("running", "RUNNING")
        return JobState("ended", "CANCELLED", f"with allocation {job_id}")

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        if own := self._allocations.get(job_id.partition(".")[0]):
            return own.details(job_id, state, nodes)
        return self._client.job_record(job_id, state, nodes, self._words.get(job_id, ANY_JOB))

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """The steps of another process end with their allocation, which is none of these jobs."""
        jobs, steps = _split_ids(job_ids)
        is_accepted = not jobs or self._client.cancel(*jobs)
        for allocation, step_ids in steps.items():
            own = self._allocations.get(allocation)
            is_accepted &= own is not None and own.cancel(step_ids)
        return is_accepted

    def cancel_pending(self, job_id: str) -> bool:
        if own := self._allocations.get(job_id.partition(".")[0]):
            return own.cancel([job_id])  # nothing starts it meanwhile
        return self._client.cancel("--state=PENDING", job_id)

    def start_now(self, job_id: str) -> None:
        self._client.start_now(job_id)

    def cancel_named(self, job: Submission) -> None:
        self._client.cancel(f"--name={job.words[0]}")

    def close(self) -> None:
        """Nothing to do: nothing stays open."""

    def script(self, job: Submission) -> str:
        if allocation := job.phase.slurm.get(ALLOCATION):
            return self._in_allocation(str(allocation.value)).script(job)
        return self._script(job)

    def _script(self, job: Submission, after: str = "", tasks: int = 1, at_once: int = 1) -> str:
        """The batch script; of an array, with the number of its tasks and how many of them may run
        at a time."""
        phase = job.phase
        python = batch_script.python_command(phase, self._profile)
        if phase.resume.value:
            python = f"sh -c {shlex.quote(KEEP_SIGNAL)} sh {python}"
        executor = _BatchScript(job, python)
        options: dict[str, Any] = {
            key: setting.value
            for key, setting in phase.slurm.items()
            if setting.value is not None and setting.value is not False  # --mem=0 is a value
        }
        if job.avoid:
            options["exclude"] = _merge_nodes(options.get("exclude"), job.avoid)
        cpus = options.pop("cpus_per_task", None)
        srun_args = ["--export=ALL", "--kill-on-bad-exit=1"]
        if cpus is not None:
            srun_args.append(f"--cpus-per-task={cpus}")  # srun does not inherit it since 22.05
            options["cpus_per_task"] = cpus
        kinds = {"afterok": after, "afterany": job.behind}
        if orders := [f"{kind}:{other}" for kind, other in kinds.items() if other]:
            # Without the second option the job would stay in the queue if the other one failed.
            options |= {"dependency": ",".join(orders), "kill_on_invalid_dep": "yes"}
        if self._profile.hardware.gpu != "none":
            options["gpus_per_node"] = phase.gpus_per_node.value
        name, comment = job.words
        executor.update_parameters(
            job_name=name,
            comment=comment,
            nodes=phase.nodes.value,
            ntasks_per_node=1,
            time=batch_script.limit_minutes(phase, self._profile),
            setup=batch_script.preparation_lines(job, self._profile),
            srun_args=srun_args,
            wckey=None,
            additional_parameters={
                **self._ending(phase),
                "export": "ALL",
                **options,
            },
        )
        if job.in_array:
            executor.parameters |= {"map_count": tasks, "array_parallelism": at_once}
        return executor.text()

    def _ending(self, phase: Phase) -> dict[str, Any]:
        """A phase runs at most once, unless it can be resumed: then it wants to know in time."""
        if not phase.resume.value:
            return {"no_requeue": True}
        return {"requeue": True, "signal": f"USR1@{self._profile.limits.stop_before_s}"}


def _split_ids(job_ids: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The ids of jobs, and those of steps by their allocation."""
    jobs, steps = list[str](), dict[str, list[str]]()
    for job_id in job_ids:
        allocation, dot, _ = job_id.partition(".")
        (steps.setdefault(allocation, []) if dot else jobs).append(job_id)
    return jobs, steps


def _merge_nodes(own: object, more: Iterable[str]) -> str:
    """The profile's own list of nodes, which may be a file of names, with more of them. Raises
    Refused if the file cannot be read."""
    try:
        names = read_host_option(str(own or ""))
    except (OSError, ValueError) as error:
        raise Refused(f"slurm.exclude: {own} cannot be read: {error}") from error
    return ",".join(filter(None, [names, *more]))


class _BatchScript(SlurmExecutor):
    """submitit's batch script with three differences: it needs no srun on this machine, so that a
    dry run works anywhere; it requests no early signal; and it starts our own entry."""

    def __init__(self, job: Submission, python: str) -> None:
        self._job = job
        task = job.directory.array / "%a" / job.directory.submitit.name
        super().__init__(task if job.in_array else job.directory.submitit, python=python)

    @classmethod
    def affinity(cls) -> int:
        return 2

    def text(self) -> str:
        command = batch_script.start_command(self.python, self._job)
        text = str(self._make_submission_file_text(command, ""))
        # submitit always requests --signal=USR2@90, which reaches every process of the step and
        # ends short jobs early, as FAILED instead of TIMEOUT.
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(SUBMITIT_SIGNAL))
