"""Starts to watch a job, and decides when to poll the scheduler: more and more rarely while all
jobs are pending, and often again once a job's claim file shows that it started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .backend import Backend, Submission
from .job_watch import WatchedJob

FIRST_POLL_S = 0.5
PENDING_POLL_S = 15.0


def watch_job(job: Submission, job_id: str, after: str) -> WatchedJob:
    """The watch over a job; `after`: the phase that it waits for in the queue."""
    newest, phase = job.directory.newest, job.phase
    return WatchedJob(
        phase.name,
        job_id,
        newest,
        int(phase.nodes.value),
        time.monotonic(),
        after,
        job.words,
        job.token,
        "",
        float(phase.timeout_s.value),
        {name: float(limit.value) for name, limit in phase.stage_limits_s.items()},
        resumes=bool(phase.resume.value),
        restarts=newest.restarts,
        at_once=job.at_once,
    )


class Poller:
    """Asks the scheduler for the states of all jobs at once, as rarely as possible: at most once
    every `running_s`."""

    def __init__(self, backend: Backend, running_s: float) -> None:
        self._backend = backend
        self._running_s = running_s
        self._interval_s = FIRST_POLL_S
        self._next = self._earliest = 0.0

    def poll_soon(self) -> None:
        self._interval_s = FIRST_POLL_S
        self._next = min(self._next, time.monotonic() + FIRST_POLL_S)

    def poll(self, jobs: Iterable[WatchedJob]) -> bool:
        """Ask, if it is time; return whether the scheduler answered."""
        jobs = list(jobs)
        now = time.monotonic()
        if any(job.complete_since and not job.ended_at for job in jobs):
            self.poll_soon()
        elif any(job.running for job in jobs):  # perhaps known only from its claim
            self._next = min(self._next, now + self._running_s)
        if not jobs or now < max(self._next, self._earliest):
            return False
        self._earliest = now + self._running_s
        states = self._backend.states([job.job_id for job in jobs])
        for job in jobs:
            if job.job_id in states:
                job.record_state(states[job.job_id])
        if any(job.running for job in jobs):
            self._interval_s = self._running_s
        else:
            self._interval_s = min(self._interval_s * 1.5, PENDING_POLL_S)
        self._next = time.monotonic() + self._interval_s
        return bool(states)
