"""Phases become jobs: submitit ships `node_job.run_node`, to Slurm or to this machine.

slurm.py          one job of N one-task nodes, through sbatch and srun
local.py          N virtual nodes on this machine, each in a session of its own
script.py         the batch script's parts that both share: environment set-up, strict set-up lines
slurm_client.py   Slurm's commands, in sessions of their own and without an outer job's words
slurm_records.py  what they print of the cluster, as typed records; slurm_jobs.py: of jobs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir
from ..evidence.scheduler_record import JobState, SchedulerRecord

__all__ = ["Backend", "JobState", "Refused", "make_backend", "make_spec"]


class Refused(Exception):
    """The scheduler did not take the job; the text is its own words."""


class Backend(Protocol):
    """Where jobs run. Calls come from one thread.

    `ranks_at_once`: how many ranks may run at the same time without thrashing; None where the
    scheduler sees to that.
    """

    ranks_at_once: int | None

    def submit(self, phase: Phase, directory: PhaseDir) -> str:
        """Start the job whose spec lies in `directory`; returns its id. Raises Refused."""

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """The states of these jobs in one question to the scheduler; a job may be missing when the
        scheduler did not answer at all (which says nothing about the job)."""

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        """What more the scheduler says of a job that did not end well and of its nodes (a list
        such as `gpu[0-2]`); None where it says nothing."""

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """End these jobs with one call; whether the scheduler has taken it. Unlike the other calls
        this one may come from another thread, while one of them waits for the scheduler."""

    def cancel_named(self, phase: Phase, directory: PhaseDir) -> None:
        """End a job whose id is not known, since its submission has not been answered yet."""

    def script(self, phase: Phase, directory: PhaseDir) -> str:
        """The exact batch script, for the dry run and for the report."""


def make_backend(profile: Profile, environ: Mapping[str, str]) -> Backend:
    """The backend of this profile. `environ`: the user's environment, with the lab's SLURM_CONF."""
    if profile.backend == "slurm":
        from .slurm_backend import SlurmBackend

        return SlurmBackend(profile, environ)
    from .local_backend import LocalBackend

    return LocalBackend(profile, environ)


def make_spec(phase: Phase, profile: Profile, run_id: str, directory: Path) -> dict[str, Any]:
    """The job as plain data, as `node_job.run_node` reads it on every node."""
    fault = {"fault": phase.staged.as_spec()} if phase.staged else {}
    expect = profile.expect.get(phase.name)
    return {
        "schema": 1,
        "run_id": run_id,
        "phase": phase.name,
        "phase_dir": str(directory),
        "backend": profile.backend,
        "nodes": phase.nodes.value,
        "ranks_per_node": phase.gpus_per_node.value,
        "script": str(phase.script),
        "argv": phase.argv(),
        "args": {name: one.value for name, one in phase.args.items()},
        "env_set": {name: str(one.value) for name, one in phase.env_set.items()},
        "env_unset": list(phase.env_unset),
        "sbatch": {name: one.value for name, one in phase.slurm.items()},
        "device": profile.hardware.device,
        "gpu": profile.hardware.gpu,
        "interconnect": profile.hardware.interconnect,
        "inter_node": list(expect.inter_node) if expect else [],
        "stage_limits_s": {name: one.value for name, one in phase.stage_limits_s.items()},
        "timeout_s": phase.timeout_s.value,
        "dump_wait_s": profile.limits.dump_wait_s,
        "nccl_hostid": profile.backend == "local",
        **fault,
    }
