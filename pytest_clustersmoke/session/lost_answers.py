"""Jobs whose submission the scheduler did not answer: they may run, so they are looked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..evidence.job_results import read_claim
from ..evidence.run_directory import PhaseDir, write_atomically
from ..jobs.backend import Backend, SearchableBackend, Submission

FIRST_LOOK_S, MOST_S = 0.5, 15.0  # between two looks
# After a controller or its sbatch was killed, a submission may still be on its way.
ABSENT_S = 5.0


def withdraw(directory: PhaseDir, token: str, why: str) -> None:
    """Give up the submission with this token: its job ends before it claims the phase, should it
    start. Raises OSError."""
    write_atomically(directory.withdrawn(token), f"{why}\n")


@dataclass
class LostAnswer:
    """Jobs that were submitted together, the phase that they wait for, and what was seen of the
    scheduler's answer; `refused_so_far`: it could not accept them then. Times are monotonic
    seconds."""

    jobs: Sequence[Submission]
    after: str
    why: str
    since: float = field(default_factory=time.monotonic)
    look_at: float = 0.0
    interval_s: float = FIRST_LOOK_S
    resubmits: bool = False  # if the scheduler answers, and does not have them
    refused_so_far: bool = False
    is_absent: bool = False

    def claimed_ids(self) -> list[str]:
        """The jobs' ids, as one that has started wrote its own in its claim; empty if none has."""
        claims = [(read_claim(job.directory), job.token) for job in self.jobs]
        ids = [claim.job_id for claim, token in claims if claim and claim.token == token]
        if not ids or not self.jobs[0].in_array:
            return ids
        return [job.own_id(ids[0].partition("_")[0]) for job in self.jobs]

    def give_up(self) -> list[str]:
        """Give the jobs up: one that starts anyway ends at once. Returns the ids if they have
        started meanwhile."""
        with contextlib.suppress(OSError):  # a full disk must not cost the other phases
            for job in self.jobs:
                withdraw(job.directory, job.token, self.why)
        return self.claimed_ids()


class LostAnswers:
    """The jobs whose ids are unknown, and the search for them."""

    def __init__(self, backend: Backend, patience_s: float) -> None:
        self._backend, self.patience_s = backend, patience_s
        self.waiting: list[LostAnswer] = []

    def count(self) -> int:
        return sum(len(lost.jobs) for lost in self.waiting)

    def add(self, lost: LostAnswer) -> None:
        self.waiting.append(lost)

    def look(self) -> Iterator[tuple[LostAnswer, list[str]]]:
        """Yield the jobs that were found with their ids, and those not found within `patience_s`
        with none."""
        for lost in list(self.waiting):
            now = time.monotonic()
            if now < lost.look_at:
                continue
            job_ids = self._find(lost)
            answered = job_ids is not None
            may_resubmit = lost.resubmits or lost.refused_so_far
            lost.is_absent = answered and may_resubmit and now - lost.since >= ABSENT_S
            if job_ids or lost.is_absent or now - lost.since >= self.patience_s:
                self.waiting.remove(lost)
                yield lost, job_ids or []
            lost.look_at = time.monotonic() + lost.interval_s
            lost.interval_s = min(lost.interval_s * 1.5, MOST_S)

    def _find(self, lost: LostAnswer) -> list[str] | None:
        """The jobs' ids; empty if they are not there, None if nobody answers."""
        found: list[str] | None = []
        if isinstance(self._backend, SearchableBackend):
            found = self._backend.find_submitted(lost.jobs)
        return found or self.adopt(lost, lost.claimed_ids()) or found

    def adopt(self, lost: LostAnswer, claimed: list[str]) -> list[str]:
        """Let the backend know the ids of jobs that have claimed their phases; returns them."""
        if isinstance(self._backend, SearchableBackend):
            for job, job_id in zip(lost.jobs, claimed, strict=False):
                self._backend.adopt(job, job_id)
        return claimed
