"""Runs each phase as one Slurm job of N nodes with one task each, which starts the launcher."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir, write_atomically
from ..evidence.scheduler_record import JobState, SchedulerRecord
from ..node.node_job import run_node
from . import batch_script
from .backend import Submission
from .slurm_client import SlurmClient, SlurmUnavailable

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

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._client = SlurmClient(environ)

    def submit(self, job: Submission, after: str = "") -> str:
        submitted = self._executor(job, after).submit(run_node, str(job.directory.spec))
        return str(submitted.job_id)

    def submit_array(self, jobs: Sequence[Submission], at_once: int, after: str = "") -> list[str]:
        words = job_words(jobs[0], in_array=True)
        scripts = [self._executor(job, after, words).write_script() for job in jobs]
        array = jobs[0].directory.array
        array.mkdir(mode=0o700, exist_ok=True)  # it does if Slurm could not accept it before
        for index, job in enumerate(jobs):
            link = array / str(index)
            link.unlink(missing_ok=True)
            link.symlink_to(job.directory.submitit)
        path = jobs[0].directory.array_script
        write_atomically(path, _array_script(scripts, array, at_once))
        return self._take_up(jobs, self._client.submit(path))

    def find_submitted(self, jobs: Sequence[Submission]) -> list[str]:
        try:
            job_id = self._client.find_job(*job_words(jobs[0], in_array=len(jobs) > 1))
        except SlurmUnavailable:
            return []
        return self._take_up(jobs, job_id) if job_id else []

    def _take_up(self, jobs: Sequence[Submission], job_id: str) -> list[str]:
        """Give jobs that Slurm has accepted what submitit starts there; return their ids. The tasks
        of an array have its id and their number."""
        in_array = len(jobs) > 1
        job_ids = [f"{job_id}_{index}" for index in range(len(jobs))] if in_array else [job_id]
        for job, own_id in zip(jobs, job_ids, strict=True):
            executor = self._executor(job)
            executor.job_id = own_id
            executor.submit(run_node, str(job.directory.spec))  # for the task, which waits for it
        return job_ids

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return self._client.job_states(job_ids)

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        return self._client.job_record(job_id, state, nodes)

    def cancel(self, job_ids: Iterable[str]) -> bool:
        jobs = list(job_ids)
        return not jobs or self._client.cancel(*jobs)

    def start_now(self, job_id: str) -> None:
        self._client.start_now(job_id)

    def cancel_named(self, job: Submission) -> None:
        in_array = job.directory.array_script.exists()
        self._client.cancel(f"--name={job_words(job, in_array)[0]}")

    def close(self) -> None:
        """Nothing to do: nothing stays open."""

    def script(self, job: Submission) -> str:
        executor = self._executor(job)
        return executor._make_submission_file_text(executor._submitit_command_str, "")

    def _executor(
        self, job: Submission, after: str = "", words: tuple[str, str] | None = None
    ) -> _Sbatch:
        """`words`: the name and comment of the array that the job is a task of."""
        phase, directory = job.phase, job.directory
        python = batch_script.python_command(phase, self._profile)
        if phase.resume.value:
            python = f"sh -c {shlex.quote(KEEP_SIGNAL)} sh {python}"
        executor = _Sbatch(directory, self._client, python)
        options: dict[str, Any] = {
            key: setting.value
            for key, setting in phase.slurm.items()
            if setting.value is not None and setting.value is not False  # --mem=0 is a value
        }
        cpus = options.pop("cpus_per_task", None)
        srun_args = ["--export=ALL", "--kill-on-bad-exit=1"]
        if cpus is not None:
            srun_args.append(f"--cpus-per-task={cpus}")  # srun does not inherit it since 22.05
            options["cpus_per_task"] = cpus
        if after:
            # Without the second option the job would stay in the queue if the other one failed.
            options |= {"dependency": f"afterok:{after}", "kill_on_invalid_dep": "yes"}
        if self._profile.hardware.gpu != "none":
            options["gpus_per_node"] = phase.gpus_per_node.value
        name, comment = words or job_words(job)
        executor.update_parameters(
            job_name=name,
            comment=comment,
            nodes=phase.nodes.value,
            ntasks_per_node=1,
            setup=batch_script.preparation_lines(phase, self._profile, directory),
            srun_args=srun_args,
            wckey=None,
            additional_parameters={
                **self._ending(phase),
                "export": "ALL",
                **options,
            },
        )
        return executor

    def _ending(self, phase: Phase) -> dict[str, Any]:
        """A phase runs at most once, unless it can be resumed: then it wants to know in time."""
        if not phase.resume.value:
            return {"no_requeue": True}
        return {"requeue": True, "signal": f"USR1@{self._profile.limits.stop_before_s}"}


def job_words(job: Submission, in_array: bool = False) -> tuple[str, str]:
    """The job's name and comment, with run and phase, so that squeue alone finds any job of ours.
    An array has the entry whose points its tasks are, and the first task's token."""
    run_id = job.directory.run.run_id
    name = job.phase.entry if in_array else job.phase.name
    token = f" token={job.token}" if job.token else ""
    return f"clustersmoke-{run_id}-{name}", f"clustersmoke run={run_id} phase={name}{token}"


def _array_script(scripts: Sequence[Path], array: Path, at_once: int) -> str:
    """A batch script whose task N runs the Nth of these scripts, with the options of the first.
    What Slurm itself says of a task goes where that script's output goes."""
    own = ("#SBATCH --output=", "#SBATCH --error=")
    options = [
        line
        for line in scripts[0].read_text(encoding="utf-8").splitlines()
        if line.startswith("#SBATCH ") and not line.startswith(own)
    ]
    logs = [
        f"{option}{shlex.quote(f'{array}/%a/%j_0_log.{kind}')}"
        for option, kind in zip(own, ("out", "err"), strict=True)
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *options,
            *logs,
            f"#SBATCH --array=0-{len(scripts) - 1}%{at_once}",
            "scripts=(",
            *(shlex.quote(str(script)) for script in scripts),
            ")",
            'exec bash "${scripts[$SLURM_ARRAY_TASK_ID]}"',
            "",
        ]
    )


class _Sbatch(SlurmExecutor):
    """submitit's executor with three differences: it needs no srun on this machine, so that a dry
    run works anywhere; it requests no early signal; and `SlurmClient` runs sbatch, unless the job
    has an id already, as a task of an array has."""

    job_id = ""

    def __init__(self, directory: PhaseDir, client: SlurmClient, python: str) -> None:
        self._directory = directory
        self._client = client
        super().__init__(directory.submitit, python=python)

    @classmethod
    def affinity(cls) -> int:
        return 2

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = str(super()._make_submission_file_text(command, uid))
        # submitit always requests --signal=USR2@90, which reaches every process of the step and
        # ends short jobs early, as FAILED instead of TIMEOUT.
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(SUBMITIT_SIGNAL))

    def write_script(self) -> Path:
        path = self._directory.batch_script
        Path(self.folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, self._make_submission_file_text(self._submitit_command_str, ""))
        return path

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        if not self.job_id:
            self.job_id = self._client.submit(self.write_script())
        tasks = list(range(self._num_tasks()))
        return SlurmJob(folder=self.folder, job_id=self.job_id, tasks=tasks)
