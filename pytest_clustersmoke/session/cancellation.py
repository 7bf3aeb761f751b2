"""The end of a run's jobs before their time: by their ids, with one call, or by their name."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..evidence.locks import ControllerFence, Superseded
from ..evidence.run_journal import FencedJournal
from ..jobs.backend import Backend, QueueBackend, Submission
from ..jobs.job_watch import WatchedJob
from .live.board import TICK_S

CANCEL_CONFIRM_S = 2.0
# How long `close` waits for a scheduler that has not answered; its command goes on without us.
LAST_CALL_S = 0.3


class Cancellation:
    """Ends the jobs of one run, those in `watched`. Any thread may call any method."""

    def __init__(
        self,
        backend: Backend,
        watched: Mapping[str, WatchedJob],
        fence: ControllerFence,
        journal: FencedJournal,
    ) -> None:
        self._backend, self._watched = backend, watched
        self._fence, self._journal = fence, journal
        self.asked, self.why = threading.Event(), "the run was interrupted"
        self.submitting: Sequence[Submission] = ()
        self.ended_ids: set[str] = set()
        self._ending = threading.Lock()

    def ask(self) -> None:
        """End every job. Returns at once, so that a signal handler may call it.

        It uses another thread, since the watch thread may be waiting for a slow scheduler.
        """
        if not self.asked.is_set():
            self.asked.set()
            _run_in_thread(self.end_quietly)

    def explain(self, why: str) -> None:
        """Note that the run ended, and why, unless it was to end already."""
        self.why = why if why and not self.asked.is_set() else self.why
        self.asked.set()

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """Cancel these jobs, as a backend does. Raises Superseded."""
        self._fence.check()
        return self._backend.cancel(job_ids)

    def end_wait(self, job: WatchedJob) -> None:
        """Take a job out of the queue unless it starts just now; the watch sees which. Raises
        Superseded."""
        self._fence.check()
        if not job.is_ours:
            return
        if isinstance(self._backend, QueueBackend):
            self._backend.cancel_pending(job.job_id)
        else:
            self._backend.cancel([job.job_id])

    def end_jobs(self) -> None:
        """End the jobs that were not ended yet, with one call."""
        with self._ending:
            watched = {job.job_id: job for job in list(self._watched.values()) if job.is_ours}
            jobs = watched.keys() - self.ended_ids
            self._fence.check()
            for job_id in jobs:
                watched[job_id].expect_end()
            if jobs and self._backend.cancel(sorted(jobs)):
                self.ended_ids |= jobs
                self._journal.write("cancelled", jobs=sorted(jobs))

    def end_named(self, jobs: Sequence[Submission]) -> None:
        """Cancel jobs by their name, unless another controller may have submitted them again."""
        with contextlib.suppress(Superseded):
            self._fence.check()
            self._backend.cancel_named(jobs[0])  # the jobs of an array have one name

    def end_quietly(self) -> None:
        try:
            self.end_jobs()
        except Exception as error:
            with contextlib.suppress(OSError):
                self._journal.write("cancel_failed", why=str(error))

    def confirm(self, jobs: Iterable[WatchedJob]) -> None:
        """Wait a while for the scheduler to confirm the end of each job."""
        jobs = list(jobs)
        deadline = time.monotonic() + CANCEL_CONFIRM_S
        while time.monotonic() < deadline and not all(job.ended_at for job in jobs):
            states = self._backend.states([job.job_id for job in jobs])
            for job in jobs:
                if job.job_id in states:
                    job.record_state(states[job.job_id])
            self.end_jobs()  # again, if the scheduler did not accept it
            time.sleep(TICK_S)

    def call_last(self) -> list[str]:
        """Ask once more, briefly, while the watch waits for a scheduler that does not answer.

        Returns the phases whose submission it did not answer.
        """
        _run_in_thread(self.end_quietly).join(timeout=LAST_CALL_S)
        jobs = self.submitting
        if not jobs:
            return []
        _run_in_thread(lambda: self.end_named(jobs)).join(timeout=LAST_CALL_S)
        return [job.phase.name for job in jobs]


def _run_in_thread(call: Callable[[], object]) -> threading.Thread:
    """Run a call in a daemon thread."""
    thread = threading.Thread(target=call, name="clustersmoke-cancel", daemon=True)
    thread.start()
    return thread
