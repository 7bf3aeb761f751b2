"""The jobs of one run: submits all phases, watches them, records results, cancels what is left.

A thread of its own talks to the scheduler, so that no criterion waits for another phase, and Ctrl-C
never interrupts a submission. It writes every result to the run directory, where xdist's workers
read it, and posts every change on the board, for the threads that wait.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.locks import ControllerFence, Superseded
from ..evidence.phase_attempts import PhaseAttempt
from ..evidence.phase_result import PhaseResult, collect_phase
from ..evidence.run_directory import ISOLATION, RERUN, RunDir, delete_output
from ..evidence.run_journal import FencedJournal, require_journal
from ..jobs.backend import Backend, Submission, prepare_jobs
from ..jobs.job_watch import WaitEnd, WatchedJob
from ..jobs.outcome import REQUEUED, Judgement, judge_refusal
from ..jobs.poller import Poller, watch_job
from ..preflight.slurm_check import CheckResult
from .cancellation import Cancellation, Leftover
from .earlier_jobs import list_left, restore_test, sort_jobs
from .job_end import describe_end, judge_end, judge_order, judge_overdue, write_result
from .live.board import TICK_S, Board, Progress, WatchFailed, do_nothing
from .lost_answers import withdraw
from .phase_ledger import PhaseLedger
from .submitter import Submitter, fault_mark

__all__ = ["JobSession", "Progress", "WatchFailed"]

# A job that has waited for long enough is cancelled every so often, and given up after so long.
WAIT_ASK_S, WAIT_CONFIRM_S = 5.0, 60.0


class JobSession:
    """The life of one run's jobs. `start`, then `wait` for each phase, then `close`."""

    def __init__(
        self,
        run: RunDir,
        profile: Profile,
        phases: Iterable[Phase],
        backend: Backend,
        check: Callable[[Iterable[Phase], RunDir], CheckResult] | None = None,
        attaches: bool = False,
        detaches: bool = False,
        avoided: Iterable[str] = (),
        isolates: bool = False,
    ) -> None:
        """`attaches`: go on with what earlier controllers of the run did; `detaches`: submit all,
        and leave the jobs to the scheduler; `avoided`: nodes that no job gets; `isolates`: more
        jobs may be asked for until `close`. Raises OSError."""
        self.run, self.profile = run, profile
        self.phases = {phase.name: phase for phase in phases}
        self._backend, self._check = backend, check
        self._detaches = detaches
        self._watched: dict[str, WatchedJob] = {}
        self._confirms = profile.history_check == "confirm"  # until `close`, criteria want reruns
        self._isolates = isolates
        self._asked_for: SimpleQueue[Phase] = SimpleQueue()
        self._expired: dict[str, str] = {}  # tests of --cluster-isolate, and why they are ended
        self.board = Board(self.phases)
        # Called with a phase's result that the run's directory did not take.
        self.on_unwritten: Callable[[PhaseResult], object] = lambda result: None
        self.results: dict[str, PhaseResult] = {}  # each read once, when its job has ended
        self._left_to_scheduler = False
        self._is_restored = not attaches  # whether the jobs of controllers before are taken up
        self.fence = ControllerFence(run)
        # After the fence: an earlier controller that still lives writes no further line.
        self._earlier = require_journal(run) if attaches else None
        self.journal = FencedJournal(run, self.fence)
        self._ending = Cancellation(backend, self._watched, self.fence, self.journal)
        self._stop = self._ending.asked
        self.ledger = PhaseLedger(run, profile.limits, backend.avoids, avoided)
        self.submitter = Submitter(
            run,
            profile,
            self.phases,
            backend,
            self.fence,
            self.journal,
            self._ending,
            self.board,
            self._watched,
            self.ledger,
            self._finish,
            detaches,
        )
        self._thread = threading.Thread(target=self._watch_jobs, name="job-watch", daemon=True)

    def start(self) -> None:
        self._ending.start()
        self._thread.start()

    def join(self) -> None:
        """Return when the watch has ended. Raises WatchFailed."""
        self._thread.join()
        self.board.check()

    def wait(
        self, phase: str, report: Callable[[Progress], None], tick: Callable[[], None] = do_nothing
    ) -> None:
        """Return when the phase's result is known, as Board.wait does."""
        self.board.wait(phase, report, tick)

    def run_more(self, phases: Iterable[Phase]) -> None:
        """Run more phases, that no criterion judges: tests of --cluster-isolate."""
        for phase in phases:
            self._asked_for.put(phase)

    def end_more(self, names: Iterable[str], why: str) -> None:
        """End such phases, whose time is over."""
        self._expired |= dict.fromkeys(names, why)

    @property
    def outcomes(self) -> dict[str, Judgement]:
        return self.board.outcomes

    def cancel(self) -> None:
        """End every job. Returns at once, so that a signal handler may call it."""
        self._ending.ask()

    def hurry(self) -> None:
        """Let `close` wait for no scheduler, now or later. For signal handlers, too."""
        self._ending.hurry()

    def close(self, why: str = "") -> Leftover:
        """Cancel what is left, since the run ended: `why`. Waits a bounded time for the scheduler.
        Returns what may still run; only without that is the run closed."""
        self._ending.explain(why)
        if self._left_to_scheduler and not self._thread.is_alive():
            self._thread = threading.Thread(target=self._cancel_detached, daemon=True)
            self._thread.start()
        self._ending.wait(self._thread)
        submitting: Sequence[Submission] = ()
        with contextlib.suppress(OSError):  # a full disk must not hide the verdict
            if self._thread.is_alive():
                self._ending.leave(self._thread)
                submitting = self._ending.withdraw_submission()
                if self._is_restored:
                    self._settle_rest(submitting)
            else:
                self._backend.close()
        self._ending.stop()
        left = self._ending.list_left(submitting)
        if self._earlier is not None and not self._is_restored:
            left = list_left(self._earlier)
        if not left:
            with contextlib.suppress(OSError):
                self.journal.write("closed")
        return left

    @property
    def is_superseded(self) -> bool:
        """Whether another process has the run now, and writes its report."""
        return self.fence.is_superseded

    @property
    def is_detachable(self) -> bool:
        """Whether all phases were submitted, to be left to the scheduler."""
        return self._left_to_scheduler and not self._ending.is_asked

    def detach(self) -> int:
        """Leave the jobs to the scheduler; return how many there are. Raises OSError."""
        self._backend.close()
        self.journal.write("detached")
        return len(self._watched)

    def _watch_jobs(self) -> None:
        try:
            self._restore_jobs()
            self._run_preflight()
            poller = Poller(self._backend, self.profile.limits.poll_s)
            while self._has_work() and not self._stop.is_set():
                self.journal.beat()
                self._take_requests()
                if poller.poll([*self._watched.values(), *self._ending.refused.values()]):
                    self._ending.end_refused()
                self.submitter.note_queued()
                self.submitter.take_answers()
                self._check_jobs(poller)
                while not self._stop.is_set() and self.submitter.submit_next(self.outcomes):
                    poller.poll_soon()
                self._stop.wait(TICK_S)
            if self._stop.is_set() or not self._detaches:
                self._cancel_all()
            else:
                self._left_to_scheduler = True
        except BaseException as error:  # raised again in `Board.wait`
            self.board.fail(error)
            self._ending.end_quietly()

    def _restore_jobs(self) -> None:
        """Take up the jobs of earlier controllers; phases that they did not submit wait."""
        if self._earlier is None:
            return
        self.journal.write("attached")
        for name in self._earlier.jobs:
            if name not in self.phases and (rerun := RERUN.fullmatch(name)):
                self._add_rerun(name, rerun[1])
            elif name not in self.phases and (test := ISOLATION.fullmatch(name)):
                self._add_phase(restore_test(self.run, name, self.phases[test[1]]))
        self.ledger.restore(self._earlier, self.phases)
        jobs = sort_jobs(self._earlier, self.phases, self.run, self.ledger)
        self._ending.check_place()
        for name in jobs.ended:
            result = self.results[name] = collect_phase(self.run.phase(name))
            self.board.finish(name, Judgement(result.outcome, result.reason), result.run_s)
        again = [job.phase.name for job, _ in jobs.retried if self._goes_on(job)]
        self.submitter.restore(self._earlier, jobs, again)
        self._is_restored = True

    def _goes_on(self, job: Submission) -> bool:
        """Whether a phase is tried again whose last job an earlier controller saw end; if not, any
        more, it is finished."""
        name = job.phase.name
        if self.ledger.can_retry(self.ledger.ended(name)[-1]):
            return True
        last = self.ledger.drop_last(name)
        judgement = Judgement(last.outcome, last.reason)
        self._finish(name, judgement, last.findings, watch_job(job, last.job_id, ""))
        return False

    def _has_work(self) -> bool:
        if self.submitter.has_work:
            return True
        return not self._detaches and bool(self._watched or self._confirms or self._isolates)

    def _take_requests(self) -> None:
        """Queue the reruns that criteria have requested. A rerun is a phase of its own name, which
        no criterion judges and no report lists."""
        for name, base in self.run.requested_reruns().items() if self._confirms else ():
            if name not in self.phases and base in self.results:
                self._add_rerun(name, base)
        while not self._asked_for.empty():
            self._add_phase(phase := self._asked_for.get())
            self.submitter.queue.waiting.append(phase)
        for name in list(self._expired):
            self._end_expired(name, self._expired.pop(name))

    def _add_phase(self, phase: Phase) -> None:
        self.phases[phase.name] = phase
        self.board.add(phase.name)

    def _end_expired(self, name: str, why: str) -> None:
        judgement = Judgement("cancelled", why)
        if job := self._watched.get(name):
            self._ending.end(job)
            self._settle(job, judgement)
        elif name not in self.outcomes:
            self.submitter.queue.drop({name})
            self._finish(name, judgement, [])

    def _add_rerun(self, name: str, base: str) -> None:
        self._add_phase(phase := replace(self.phases[base], name=name, trace=None))
        self.submitter.queue.waiting.append(phase)

    def _run_preflight(self) -> None:
        """Ask the scheduler about all phases; finish those that it would not run."""
        if self._check is None:
            return
        self.fence.check()  # the check writes batch scripts
        self.board.set_waiting_reason("preflight")
        try:
            checked = self._check(list(self.submitter.queue.waiting), self.run)
        except OSError as error:
            phases, self.submitter.queue.waiting = self.submitter.queue.waiting, []
            self.submitter.finish_unwritten(phases, error)
            return
        self.board.set_waiting_reason("")
        self.submitter.starts = checked.starts
        for line in checked.lines:
            self.board.post("preflight", line)
        waiting = self.submitter.queue.waiting
        for phase in [phase for phase in waiting if phase.name in checked.findings]:
            findings = checked.findings[phase.name]
            waiting.remove(phase)
            with contextlib.suppress(OSError):  # a full disk: the result says what is known
                prepare_jobs([phase], self.profile, [self.run.phase(phase.name)])
            self.journal.write("refused", phase=phase.name, words=findings[0].cause)
            self._finish(phase.name, judge_refusal(findings), findings)

    def _check_jobs(self, poller: Poller) -> None:
        for job in list(self._watched.values()):
            if self._stop.is_set():
                return  # what was just seen of it may be our own cancellation
            if job.after and not self._may_start(job):
                continue
            if job.is_over():
                end = None if job.running else job.wait_end
                self._settle(job, Judgement("never_ran", end.reason) if end else None)
                poller.poll_soon()  # it leaves its nodes to another
                continue
            if job.was_requeued:
                job.was_requeued = False
                self.journal.write("requeued", phase=job.phase, job_id=job.job_id)
                self.fence.check()
                self._backend.start_now(job.job_id)
            estimate = self.submitter.starts.get(job.phase)
            late = judge_overdue(job, self.phases[job.phase], self.profile)
            if end := job.check_wait(self.profile.limits.queue_wait_s, estimate):
                self._end_wait(job, end)
                poller.poll_soon()
            elif late or job.is_straggling():
                self._ending.end(job)
                self._settle(job, late)
            else:
                self.board.update(job)

    def _end_wait(self, job: WatchedJob, end: WaitEnd) -> None:
        """Cancel a job that has waited for long enough. It is over once the scheduler shows that,
        and runs on if it has started; where neither is shown, it is given up."""
        now = time.monotonic()
        if now - end.since > WAIT_CONFIRM_S:
            self.fence.check()
            with contextlib.suppress(OSError):  # it is cancelled as well
                withdraw(job.directory, job.token, end.reason)
            self._ending.end(job)
            reason = f"{end.reason}; the scheduler has not confirmed that it is cancelled"
            self._settle(job, Judgement("never_ran", reason))
        elif now - end.asked_at > WAIT_ASK_S:
            end.asked_at = now
            self._ending.end_wait(job)

    def _may_start(self, job: WatchedJob) -> bool:
        """Whether the phase that this job waits for in the queue has passed. If it ended in another
        way, the job never runs: Slurm cancels it, perhaps before the other phase is judged."""
        judged = self.outcomes.get(job.after)
        if judged is None:
            self.board.update(job)
        elif judged.outcome == "passed":
            job.after, job.submitted_at = "", time.monotonic()  # the queue's limit counts from now
            return True
        else:
            self.submitter.give_up_follower(job)
            self._give_up(job, judged)
        return False

    def _give_up(self, job: WatchedJob, before: Judgement) -> None:
        """Finish a phase that must not run, because the one before it did not pass."""
        self._finish(job.phase, *judge_order(job.after, before), job)

    def _settle(self, job: WatchedJob, cancelled: Judgement | None = None) -> None:
        backend = None if self._stop.is_set() else self._backend
        if backend is not None and job.may_run and not job.has_succeeded():
            self._ending.end(job)
        result, judgement, findings = judge_end(job, backend, cancelled, self._ending.end)
        # A requeue that a phase with `resume` did not ask for may hide a node that failed.
        may_hide = job.resumes and judgement.ended_by == REQUEUED
        if not self._stop.is_set() and not may_hide:
            submitted = self.submitter.submitted.get(job.phase)
            ended = describe_end(job, judgement, findings, result, submitted, self.profile)
            if self.ledger.can_retry(ended) and self._retry(job, ended):
                return
        self._finish(job.phase, judgement, findings, job, result)

    def _retry(self, job: WatchedJob, ended: PhaseAttempt) -> bool:
        """Submit another job for a phase whose job the cluster took away; return whether that is
        possible: what is known of this one must outlive this process."""
        with self._ending.step(job.phase):
            try:
                withdraw(job.directory, job.token, "the phase is tried again")
                self.ledger.add(job.phase, ended)
            except OSError as error:
                self.board.post(job.phase, f"cannot be tried again: {error}")
                return False
            mark = {"attempt": ended.number, "outcome": ended.outcome}
            self.journal.write("retry", phase=job.phase, job_id=job.job_id, **mark)
            self.submitter.try_again(job.phase)
        self.submitter.hold_followers(job.phase)
        self.board.post(job.phase, ended.words)
        return True

    def _finish(
        self,
        name: str,
        last: Judgement,
        findings: Sequence[Finding],
        job: WatchedJob | None = None,
        result: PhaseResult | None = None,
    ) -> None:
        """Write the phase's result, by the judgement of its last job and by those before."""
        with self._ending.step(name):
            self._watched.pop(name, None)
            estimate = self.submitter.starts.get(name)
            marks = {**fault_mark(self.phases[name]), "estimated_start": estimate}
            left = {"confirmed": False} if self._ending.is_left(name, job) else {}
            if left:  # before the result, which would say that the job has ended
                self.journal.write("unconfirmed", phase=name)
            written = write_result(
                self.run.phase(name),
                self.profile,
                result,
                last,
                job,
                findings,
                self.submitter.submitted.get(name),
                marks,
                self.ledger.ended(name),
            )
            self.results[name] = written.result
            if written.error is not None:
                self.board.post(name, f"its result cannot be written: {written.error}")
                self.on_unwritten(written.result)
            job_id, outcome = job.job_id if job else "", written.judgement.outcome
            self.journal.write("ended", phase=name, job_id=job_id, outcome=outcome, **left)
            self.board.finish(name, written.judgement, written.result.run_s)
        if outcome == "passed":  # not in the step, which the end of a run waits for
            delete_output(self.run.phase(name))  # other phases may need its space

    def _cancel_all(self) -> None:
        """End every job with one call, and wait a while for the scheduler to confirm each."""
        self._ending.end_jobs()
        self._ending.confirm(self._settle_interrupted)
        self.submitter.end_searches()
        self._settle_rest()

    def _cancel_detached(self) -> None:
        """End what was to be left to the scheduler: the run was interrupted before it was."""
        with contextlib.suppress(Superseded, WatchFailed):
            self._cancel_all()

    def _settle_rest(self, submitting: Sequence[Submission] = ()) -> None:
        """Write the result of each phase that has none, without the scheduler, unless a file of it
        hangs; `submitting`: the jobs of a submission that the scheduler does not answer."""
        for job in list(self._watched.values()):  # the watch may still add one
            if job.phase not in self._ending.hung:
                self._settle_interrupted(job)
        self.submitter.settle_rest(self._ending.why, submitting)
        unsubmitted = Judgement("cancelled", f"{self._ending.why} before it was submitted")
        for name in list(self.phases):
            if name not in self.outcomes and name not in self._ending.hung:  # the watch was at it
                self._finish(name, unsubmitted, [])

    def _settle_interrupted(self, job: WatchedJob) -> None:
        left = job.state.left if job.state else ""
        if self._ending.may_run(job):
            left = f"not confirmed that job {job.job_id} has ended"
        reason = "; ".join(filter(None, (self._ending.why, left)))
        self._settle(job, None if job.failed_first else Judgement("cancelled", reason))
