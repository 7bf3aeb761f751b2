"""The end of a run's jobs before their time: by their ids, with one call, or by their name."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from ..evidence.locks import ControllerFence, Superseded, Unclear
from ..evidence.run_journal import FencedJournal
from ..jobs.backend import Backend, QueueBackend, Submission
from ..jobs.job_watch import WatchedJob
from .live.board import TICK_S, WatchFailed
from .lost_answers import withdraw

# How long the end of a run waits for its jobs; about a second more writes the report.
CLOSE_S = 2.7
# For a scheduler that does not answer scancel; the command goes on without us.
SILENT_S = 1.6
# After a second signal: in this time scancel has started, and it goes on without us.
HURRY_S = 1.0
# For a step of the watch, which writes a few small files; after a second signal, HURRY_S.
STEP_S = 20.0
CANCEL_CONFIRM_S = 2.0
LAST_CALL_S = 0.3
WAIT_S = 0.05


@dataclass(frozen=True)
class Leftover:
    """What may still run, or appear in the queue, when a run has ended: jobs by their ids, and
    phases whose submission the scheduler did not answer."""

    jobs: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.phases)


class EndableJobs(Protocol):
    """The jobs of one run as the end of a session needs them: those of phases, or of a screen."""

    journal: FencedJournal

    @property
    def is_superseded(self) -> bool:
        """Whether another process has the run now, and writes its report."""

    def cancel(self) -> None:
        """End every job. Returns at once."""

    def close(self, why: str = "") -> Leftover:
        """Cancel what is left, since the run ended: `why`. Returns what may still run."""


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
        self.unconfirmed: dict[str, str] = {}  # by phase, the jobs that may run on
        # By id, jobs of phases that are over, which the scheduler did not agree to end so far, or
        # has yet to show as ours.
        self.refused: dict[str, WatchedJob] = {}
        self.unfound: set[str] = set()  # phases whose jobs were given up while they were looked for
        self._ending, self._stepping = threading.Lock(), threading.Lock()
        self._left: threading.Thread | None = None  # the watch that the run has ended without
        self._stepping_on: Sequence[str] = ()  # the phases of the step that it is at
        self.hung: Sequence[str] = ()  # the same, of a step that did not end in time
        # A signal handler may write these: it takes no lock that the main thread may hold.
        self._is_asked = self._is_hurried = False
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._called_at: float | None = None
        self._has_returned = False

    def start(self) -> None:
        """Start the thread that serves requests: the watch thread may wait for a slow scheduler."""
        _run_in_thread(self._serve)

    def stop(self) -> None:
        self._requests.put(False)

    def ask(self) -> None:
        """End every job. Returns at once, so that a signal handler may call it."""
        if not self._is_asked:
            self._is_asked = True
            self._requests.put(True)

    def hurry(self) -> None:
        """Wait for nothing more than that the command has started which ends the jobs."""
        self._is_hurried = True

    @property
    def is_asked(self) -> bool:
        return self._is_asked or self.asked.is_set()

    def explain(self, why: str) -> None:
        """Note that the run ended, and why, unless it was to end already."""
        self.why = why if why and not self.is_asked else self.why
        self.asked.set()

    def wait(self, watch: threading.Thread) -> None:
        """Have every job ended, and wait for the watch, but not for a scheduler that is silent."""
        begun = time.monotonic()
        if watch.is_alive():
            self.ask()
        while watch.is_alive():
            waited_s = time.monotonic() - begun
            # Other backends wait in `cancel` for what they end.
            has_queue = self._backend.chains
            is_silent = has_queue and not self._has_returned and waited_s > SILENT_S
            if waited_s > CLOSE_S or is_silent or (self._is_hurried and self._has_called()):
                return
            watch.join(timeout=WAIT_S)

    def leave(self, watch: threading.Thread) -> None:
        """End the run without this watch: it begins no other step. The one that it is at is waited
        for, unless a file of that hangs."""
        self._left, begun = watch, time.monotonic()
        while not self._stepping.acquire(timeout=WAIT_S):
            if time.monotonic() - begun > (HURRY_S if self._is_hurried else STEP_S):
                self.hung = self._stepping_on
                return
        self._stepping.release()

    @contextlib.contextmanager
    def step(self, *phases: str) -> Iterator[None]:
        """A step that a watch does whole, or, if the run has ended without it, not at all. Raises
        WatchFailed or Superseded."""
        # A watch that the run has ended without may never end the step that it is at.
        with contextlib.nullcontext() if self._left is not None else self._stepping:
            self.check_place()
            self._stepping_on = phases
            self._fence.check()  # this reads a directory, and may hang as well
            yield

    def check_place(self) -> None:
        """Raise WatchFailed in a watch thread that the run has ended without."""
        if threading.current_thread() is self._left:
            raise WatchFailed("the run has ended without its watch, which waited for the scheduler")

    def _has_called(self) -> bool:
        """Whether the command that ends the jobs has started, and goes on without this process."""
        called = self._called_at if self._backend.chains else None
        return self._has_returned or (called is not None and time.monotonic() - called > HURRY_S)

    def end(self, job: WatchedJob) -> None:
        """End a job whose phase is over, unless its id is another job's now. One that the scheduler
        does not agree to end, or has not shown since an earlier controller watched it, is
        remembered. Raises Superseded."""
        self._fence.check()
        if job.is_ours and not (job.is_sure and self._backend.cancel([job.job_id])):
            self.refused[job.job_id] = job

    def end_refused(self) -> None:
        """End such jobs again, unless the scheduler, which was just asked, shows that they have
        ended. Raises Superseded."""
        self._forget_refused()
        if jobs := [job_id for job_id, job in self.refused.items() if job.may_end]:
            self._fence.check()
            if self._backend.cancel(jobs):
                self._forget_refused(jobs)

    def _forget_refused(self, agreed: Container[str] = ()) -> None:
        """Note which of them are not left: the scheduler agreed to end them, or shows their end."""
        for job_id, job in [*self.refused.items()]:
            is_over = job.is_gone or job_id in agreed
            if is_over and self.refused.pop(job_id, None) is not None:
                self._journal.write("confirmed", phase=job.phase, job_id=job_id)

    def end_wait(self, job: WatchedJob) -> None:
        """Take a job out of the queue unless it starts just now; the watch sees which. Raises
        Superseded."""
        self._fence.check()
        if not job.may_end:
            return
        if isinstance(self._backend, QueueBackend):
            self._backend.cancel_pending(job.job_id)
        else:
            self._backend.cancel([job.job_id])

    def end_jobs(self) -> None:
        """End the jobs that were not ended yet, with one call."""
        with self._ending:
            known = [*self._watched.values(), *self.refused.values()]
            watched = {job.job_id: job for job in known if job.may_end}
            jobs = watched.keys() - self.ended_ids
            try:
                self._fence.check()
                for job_id in jobs:
                    watched[job_id].expect_end()
                self._called_at = self._called_at or time.monotonic()
                if jobs and self._backend.cancel(sorted(jobs)):
                    self.ended_ids |= jobs
                    self._journal.write("cancelled", jobs=sorted(jobs))
                    self._forget_refused(jobs)
            finally:
                self._has_returned = True

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

    def confirm(self, settle: Callable[[WatchedJob], object]) -> None:
        """Wait a while for the scheduler to confirm the end of each job; it is asked once at least,
        however slow this machine is. Jobs that had not started are settled while others still
        end."""
        left, deadline = list(self._watched.values()), time.monotonic() + CANCEL_CONFIRM_S
        while jobs := [*left, *self.refused.values()]:
            states = self._backend.states([job.job_id for job in jobs])
            for job in jobs:
                if job.job_id in states:
                    job.record_state(states[job.job_id])
            self._forget_refused()
            self.end_jobs()  # again, if the scheduler did not accept it
            for job in [job for job in left if job.has_left_queue and not job.running]:
                settle(job)
            left = [job for job in left if not job.has_left_queue]
            if time.monotonic() > deadline:
                return
            if left or self.refused:
                time.sleep(TICK_S)

    def may_run(self, job: WatchedJob) -> bool:
        """Whether a job may run although it was to be ended: the scheduler has neither agreed nor
        said that it has ended. Such a job is remembered."""
        is_over = job.check_files() or job.has_left_queue
        if is_over or not job.is_ours or job.job_id in self.ended_ids:
            return False
        self.unconfirmed[job.phase] = job.job_id
        return True

    def is_left(self, phase: str, job: WatchedJob | None) -> bool:
        """Whether the last job of this phase, which is over, may run on."""
        return phase in self.unconfirmed or (job is not None and job.job_id in self.refused)

    def list_left(self, submitting: Sequence[Submission]) -> Leftover:
        """What may still run; `submitting`: the jobs whose submission was given up."""
        watched = [job for job in list(self._watched.values()) if job.phase not in self.hung]
        still = [job.job_id for job in watched if self.may_run(job)]
        jobs = dict.fromkeys([*self.unconfirmed.values(), *self.refused, *still])
        unfound = sorted(self.unfound - self.unconfirmed.keys())
        phases = dict.fromkeys([*(job.phase.name for job in submitting), *unfound, *self.hung])
        return Leftover(tuple(jobs), tuple(phases))

    def withdraw_submission(self) -> Sequence[Submission]:
        """Give up the submission that the scheduler does not answer: its jobs end before they claim
        anything, and their name is cancelled. Returns them. Raises Superseded."""
        jobs = self.submitting
        with contextlib.suppress(Unclear):  # they are named all the same
            if jobs:
                self._fence.check()
                with contextlib.suppress(OSError):  # their name is cancelled as well
                    for job in jobs:
                        withdraw(job.directory, job.token, self.why)
                _run_in_thread(lambda: self.end_named(jobs)).join(timeout=LAST_CALL_S)
        return jobs

    def _serve(self) -> None:
        while self._requests.get():
            self.asked.set()
            self.end_quietly()


def _run_in_thread(call: Callable[[], object]) -> threading.Thread:
    """Run a call in a daemon thread."""
    thread = threading.Thread(target=call, name="clustersmoke-cancel", daemon=True)
    thread.start()
    return thread
