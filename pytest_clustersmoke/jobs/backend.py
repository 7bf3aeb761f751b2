"""The interface of a backend, and the job spec: submitit ships `node_job.run_node` to the nodes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from typing_extensions import assert_never  # in typing from Python 3.11 on

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_directory import PhaseDir, RunDir, write_json
from ..evidence.scheduler_record import JobState, SchedulerRecord
from ..evidence.transport_rule import TransportRule

NAME_BEGINS = "clustersmoke-"  # the name of every job of ours
COMMENT_BEGINS = "clustersmoke run="  # and its comment
COMMENT_WORDS = re.compile(r"\b(run|phase|screen|token)=(\S*)")
STRANGER = "Slurm shows another job under this id"
Words = tuple[str, str]  # a job's name and comment in the scheduler's queue
ANY_JOB: Words = ("", "")

__all__ = [
    "ANY_JOB",
    "COMMENT_BEGINS",
    "STRANGER",
    "ArrayBackend",
    "Backend",
    "JobState",
    "QueueBackend",
    "Refused",
    "RunBackend",
    "SchedulerSilent",
    "SearchableBackend",
    "Submission",
    "Unanswered",
    "Words",
    "allow",
    "make_backend",
    "make_spec",
    "names_job",
    "names_run",
]


class Refused(Exception):
    """The scheduler did not accept the job; the text is its error message. `no_controller`: it
    could not be reached at all, so the job's settings are not to blame; `for_now`: it may accept
    the same job later; `at_limit`: once other jobs of this user have ended."""

    def __init__(
        self,
        message: str,
        *,
        no_controller: bool = False,
        for_now: bool = False,
        at_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.no_controller, self.for_now, self.at_limit = no_controller, for_now, at_limit


class Unanswered(Exception):
    """The scheduler may have accepted the job or not; the text says what was seen of its answer.
    `refused_so_far`: it could not accept jobs then, and was asked again."""

    def __init__(self, message: str, *, refused_so_far: bool = False) -> None:
        super().__init__(message)
        self.refused_so_far = refused_so_far


def allow() -> None:
    """Let a job be submitted."""


@dataclass(frozen=True)
class Submission:
    """A phase to be submitted: where its job writes, and a token that its spec, its comment in the
    scheduler's queue and its claim carry, and that no other submission has (empty in a dry run).
    Phases that are submitted together, as the tasks of an array, have one token, and each has an
    `index`; `at_once`: how many tasks of it may run at a time. `behind`: the id of a job that must
    end first, however it does, or several, separated by colons. `avoid`: nodes that it must not
    get. `check`: to be called just before the scheduler is asked to take it; raises OSError if this
    process must not submit it any more."""

    phase: Phase
    directory: PhaseDir
    token: str = ""
    index: int | None = None
    behind: str = ""
    avoid: tuple[str, ...] = ()
    check: Callable[[], object] = field(default=allow, compare=False)
    at_once: int | None = None

    @property
    def in_array(self) -> bool:
        return self.index is not None

    def own_id(self, job_id: str) -> str:
        """The id of its job, which the scheduler took under this one: an array has one, too."""
        return f"{job_id}_{self.index}" if self.in_array else job_id

    @property
    def words(self) -> Words:
        """The job's name and comment, with run and phase, so that squeue alone finds any job of
        ours. An array has the entry whose points its tasks are; if they are phases of several
        entries, its token tells it from the run's other arrays."""
        run_id = self.directory.run.run_id
        token = f" token={self.token}" if self.token else ""
        if self.in_array and not self.phase.base:
            return (
                f"{NAME_BEGINS}{run_id}-array-{self.token}",
                f"{COMMENT_BEGINS}{run_id} array{token}",
            )
        name = self.phase.entry if self.in_array else self.phase.name
        return f"{NAME_BEGINS}{run_id}-{name}", f"{COMMENT_BEGINS}{run_id} phase={name}{token}"


def names_job(words: Words, name: str, comment: str) -> bool:
    """Whether an answer of the scheduler's under a job's id is about the job with these `words`: a
    scheduler that lost its state, or is set up anew, counts its ids from 1 again. Some sites write
    comments of their own, add to ours, or cut it; accounting may keep none."""
    own_name, own_comment = words
    if own_name and name and name != own_name:
        return False
    if own_comment in comment or COMMENT_BEGINS not in comment:
        return True
    own = dict(COMMENT_WORDS.findall(own_comment))
    shown = COMMENT_WORDS.findall(comment[comment.index(COMMENT_BEGINS) :])
    return all(own.get(key, value).startswith(value) for key, value in shown)


def names_run(words: Words, run_id: str) -> bool:
    """Whether a job with this name and comment is one of the run's: a site may cut the comment, or
    write its own."""
    name, comment = words
    return name.startswith(f"{NAME_BEGINS}{run_id}-") or f"{COMMENT_BEGINS}{run_id} " in comment


class SchedulerSilent(Exception):
    """The scheduler does not answer a question about jobs; the text says how."""


class Backend(Protocol):
    """Where jobs run. All calls but `cancel` and `cancel_named` come from one thread.

    `ranks_at_once`: how many ranks can run at the same time without thrashing; None if the
    scheduler takes care of that. `chains`: whether a job can wait in the queue for another;
    `avoids`: whether it can be kept off nodes.
    """

    ranks_at_once: int | None
    chains: bool
    avoids: bool

    def submit(self, job: Submission, after: str = "") -> str:
        """Start the job whose spec is in its directory and return its id. A backend that `chains`
        holds it until the job `after` has succeeded. Raises Refused and Unanswered."""

    def adopt(self, job: Submission, job_id: str) -> None:
        """Take up a job that an earlier controller of the run submitted, or that has started before
        its submission was answered."""

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """The states of these jobs, from one query. A job is missing if the scheduler did not
        answer, which says nothing about the job."""

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        """Details from the scheduler about a job that did not succeed and about its nodes (a list
        such as `gpu[0-2]`); None if it has none."""

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """Cancel these jobs with one call; return whether the scheduler accepted it. This call may
        come from another thread while a different call waits for the scheduler."""

    def start_now(self, job_id: str) -> None:
        """Let a job that was requeued start as soon as there is room."""

    def cancel_named(self, job: Submission) -> None:
        """Cancel a job by its name, because its submission was not answered yet and its id is
        unknown."""

    def close(self) -> None:
        """End what only this process uses; jobs go on."""

    def script(self, job: Submission) -> str:
        """The exact batch script, for the dry run and the report."""


@runtime_checkable
class ArrayBackend(Protocol):
    """A backend that can start several phases as one job array."""

    def submit_array(self, jobs: Sequence[Submission], at_once: int, after: str = "") -> list[str]:
        """Start a job for each of these phases, which differ in names and arguments only, at most
        `at_once` of them at a time; return their ids. Raises Refused and Unanswered."""


@runtime_checkable
class QueueBackend(Protocol):
    """A backend whose jobs wait in a queue."""

    def cancel_pending(self, job_id: str) -> bool:
        """Cancel a job if it has not started, which the scheduler decides; return whether it
        accepted the request."""


@runtime_checkable
class SearchableBackend(Protocol):
    """A backend that finds a job again whose submission it did not answer."""

    def find_submitted(self, jobs: Sequence[Submission]) -> list[str] | None:
        """The ids of these jobs, which were submitted together; empty while they are not found,
        None if the scheduler does not answer."""


@runtime_checkable
class RunBackend(Protocol):
    """A backend whose jobs any process can find and end."""

    def jobs_of_runs(self, runs: Sequence[RunDir]) -> dict[str, list[str]]:
        """By run id: the ids of the jobs of this user's runs that have not ended, whoever submitted
        them. Asks once for all. Raises SchedulerSilent."""

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """As of any backend, once `jobs_of_runs` was called."""

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """As of any backend."""


def make_backend(profile: Profile, environ: Mapping[str, str], here: bool = False) -> Backend:
    """Make the profile's backend. `environ`: the user's environment, with the lab's SLURM_CONF;
    `here`: in the allocation that it names."""
    if here:
        from .allocation_backend import AllocationBackend

        return AllocationBackend(profile, environ)
    if profile.backend == "slurm":
        from .slurm_backend import SlurmBackend

        return SlurmBackend(profile, environ)
    if profile.backend == "ssh":
        from .ssh_backend import SshBackend

        return SshBackend(profile, environ)
    if profile.backend == "local":
        from .local_backend import LocalBackend

        return LocalBackend(profile, environ)
    assert_never(profile.backend)


def prepare_jobs(
    phases: Sequence[Phase],
    profile: Profile,
    directories: Sequence[PhaseDir],
    behind: str = "",
    avoid: Iterable[str] = (),
    check: Callable[[], object] = allow,
) -> list[Submission]:
    """Write the specs of phases that are submitted together, with one token, in the directories of
    their jobs. Raises OSError."""
    token, jobs = secrets.token_hex(8), []
    for position, (phase, directory) in enumerate(zip(phases, directories, strict=True)):
        write_json(directory.spec, make_spec(phase, profile, directory, token))
        index = position if len(phases) > 1 else None
        jobs.append(Submission(phase, directory, token, index, behind, tuple(avoid), check))
    return jobs


def make_spec(
    phase: Phase, profile: Profile, directory: PhaseDir, token: str = ""
) -> dict[str, Any]:
    """Make the job spec: plain data that `node_job.run_node` reads on every node."""
    fault = {"fault": phase.staged.as_spec()} if phase.staged else {}
    trace = {"trace": phase.trace.as_spec()} if phase.trace else {}
    resume = {"resume": phase.resume.value} if phase.resume.value and not phase.staged else {}
    between = TransportRule.of(profile.expect.get(phase.entry), inside=False)
    return {
        "schema": 1,
        "run_id": directory.run.run_id,
        "token": token,
        "phase": phase.name,
        "entry": phase.entry,
        "phase_dir": str(directory.root),
        "backend": profile.backend,
        "nodes": phase.nodes.value,
        "ranks_per_node": phase.gpus_per_node.value,
        "script": str(phase.script),
        "argv": phase.argv(),
        "args": {name: setting.value for name, setting in phase.args.items()},
        "args_from": {name: setting.source for name, setting in phase.args.items()},
        "resized": list(phase.resized),
        "env_set": {name: str(setting.value) for name, setting in phase.env_set.items()},
        "env_unset": list(phase.env_unset),
        "sbatch": {name: setting.value for name, setting in phase.slurm.items()},
        "device": profile.hardware.device,
        "gpu": profile.hardware.gpu,
        "infiniband": between.expects_infiniband(profile.hardware.interconnect),
        "stage_limits_s": {name: limit.value for name, limit in phase.stage_limits_s.items()},
        "timeout_s": phase.timeout_s.value,
        "launcher": phase.launcher.value,
        "proof": phase.proof.value,
        "proof_steps": phase.proof_steps.value,
        "peaks": phase.peaks.value,
        "dump_wait_s": profile.limits.dump_wait_s,
        "nccl_hostid": profile.backend == "local",
        **fault,
        **trace,
        **resume,
    }
