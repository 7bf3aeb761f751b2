"""A fake backend: a test sets the states of jobs; every call is recorded.

The watch thread calls it while the test looks on, so a call is recorded once it has done its work:
a state that a test sets as soon as it sees the call stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.scheduler_record import JobState, SchedulerRecord
from pytest_clustersmoke.jobs.backend import Refused, Submission, Unanswered


class FakeBackend:
    """Jobs are pending, or in their `first` state, until a test changes it."""

    def __init__(self, ranks_at_once: int | None = None, chains: bool = False) -> None:
        self.ranks_at_once = ranks_at_once
        self.chains = chains
        self.avoids = True
        self.avoided: dict[str, tuple[str, ...]] = {}  # phase -> the nodes that its job must avoid
        self.orders: dict[str, str] = {}  # phase -> the job that its job was submitted after
        self.lanes: dict[str, str] = {}  # phase -> the jobs that must end first, however they do
        self.calls: list[tuple[str, ...]] = []
        self.jobs: dict[str, JobState] = {}
        self.first: dict[str, JobState] = {}  # phase -> the state of its job once it is accepted
        self.directories: dict[str, PhaseDir] = {}
        self.refusals: dict[str, str] = {}
        self.busy: dict[str, int] = {}  # phase -> how often it cannot be accepted yet
        self.silent: dict[str, bool] = {}  # phase -> whether it was accepted without an answer
        self.records: dict[str, SchedulerRecord] = {}
        self.array_id = ""  # of the next arrays, whose jobs otherwise have the names of the phases
        self.broken: Exception | None = None
        self.on_cancel = JobState("ended", "CANCELLED")

    def submit(self, job: Submission, after: str = "") -> str:
        try:
            return self._submit(job, after)
        finally:
            self.calls.append(("submit", job.phase.name))

    def _submit(self, job: Submission, after: str) -> str:
        phase = job.phase
        self.orders[phase.name], self.avoided[phase.name] = after, job.avoid
        self.lanes[phase.name] = job.behind
        if phase.name in self.refusals:
            raise Refused(self.refusals[phase.name])
        if self.busy.get(phase.name, 0) > 0:
            self.busy[phase.name] -= 1
            raise Refused("temporarily unable to accept job", for_now=True)
        if phase.name in self.silent:
            raise Unanswered("sbatch: error: Socket timed out")
        return self._accept(job)

    def find_submitted(self, jobs: Sequence[Submission]) -> list[str]:
        names = [job.phase.name for job in jobs]
        accepted = all(self.silent.get(name) for name in names)
        found = [self._accept(job) for job in jobs] if accepted else []
        self.calls.append(("find", *names))
        return found

    def _accept(self, job: Submission) -> str:
        self.directories[job.phase.name] = job.directory
        pending = JobState("pending", "PENDING", "Priority")
        self.jobs[job.phase.name] = self.first.get(job.phase.name, pending)
        return job.phase.name

    def submit_array(self, jobs: Sequence[Submission], at_once: int, after: str = "") -> list[str]:
        self.calls.append(("array", str(at_once), *(job.phase.name for job in jobs)))
        names = [self.submit(job, after) for job in jobs]
        return (
            [f"{self.array_id}_{index}" for index in range(len(names))] if self.array_id else names
        )

    def adopt(self, job: Submission, job_id: str) -> None:
        self.calls.append(("adopt", job_id))

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        wanted, jobs = list(job_ids), {**self.jobs}
        self.calls.append(("states", *wanted))
        if self.broken:
            raise self.broken
        return {job: jobs[job] for job in wanted if job in jobs}

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        self.calls.append(("details", job_id, state.raw, nodes))
        return self.records.get(job_id)

    def start_now(self, job_id: str) -> None:
        pass

    def cancel_named(self, job: Submission) -> None:
        self.calls.append(("cancel_named", job.phase.name))

    def cancel(self, job_ids: Iterable[str]) -> bool:
        wanted = list(job_ids)
        for job in wanted:
            self.jobs[job] = self.on_cancel
        self.calls.append(("cancel", *wanted))
        return True

    def close(self) -> None:
        self.calls.append(("close",))

    def script(self, job: Submission) -> str:
        return f"#!/bin/bash\n#SBATCH --gpus-per-node={job.phase.gpus_per_node.value}\n"

    def named(self, call: str) -> list[tuple[str, ...]]:
        return [recorded[1:] for recorded in self.calls if recorded[0] == call]
