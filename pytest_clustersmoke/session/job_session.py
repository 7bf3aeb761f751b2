"""The jobs of one run: submits all phases, watches them, records results, cancels what is left.

A thread of its own talks to the scheduler, so that no criterion waits for another phase, and Ctrl-C
never interrupts a submission. It writes every result to the run directory, where xdist's workers
read it, and posts every change on the board, for the threads that wait.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from .. import diagnose
from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.file_problems import is_full
from ..evidence.finding import Finding
from ..evidence.locks import ControllerFence, Superseded
from ..evidence.phase_result import PhaseResult, collect_phase
from ..evidence.run_directory import RERUN, RunDir, create_phase
from ..evidence.run_journal import FencedJournal, RunJournal
from ..evidence.scheduler_record import JobState
from ..jobs.backend import ArrayBackend, Backend, Refused, Submission, Unanswered, prepare_jobs
from ..jobs.job_watch import Poller, WatchedJob, watch_job
from ..jobs.outcome import Judgement, judge_refusal
from ..preflight.slurm_check import CheckResult
from .earlier_jobs import sort_jobs
from .job_end import judge_end, write_result
from .live.board import TICK_S, Board, Progress, WatchFailed, do_nothing
from .lost_answers import LostAnswer, LostAnswers
from .phase_queue import Lanes, PhaseQueue, count_started

__all__ = ["JobSession", "Progress", "WatchFailed"]

CLOSE_S = 2.7  # and about a second to write the report and leave
CANCEL_CONFIRM_S = 2.0
# How long `close` waits for a scheduler that has not answered; its command goes on without us.
LAST_CALL_S = 0.3


class JobSession:
    """The life of one run's jobs. `start`, then `wait` for each phase, then `close`."""

    def __init__(
        self,
        run: RunDir,
        profile: Profile,
        phases: Iterable[Phase],
        backend: Backend,
        check: Callable[[Iterable[Phase], RunDir], CheckResult] | None = None,
        earlier: RunJournal | None = None,
        detaches: bool = False,
    ) -> None:
        """`earlier`: the journal of the controllers before; `detaches`: submit all, and leave the
        jobs to the scheduler. Raises OSError."""
        self.run, self.profile = run, profile
        self.phases = {phase.name: phase for phase in phases}
        self._backend, self._check = backend, check
        self._starts: Mapping[str, float] = {}
        self._queue = PhaseQueue(self.phases, backend, profile.limits, has_cap=not detaches)
        self._detaches, self._lanes = detaches, Lanes(profile.limits.max_jobs)
        self._watched: dict[str, WatchedJob] = {}
        self._submitted_wall: dict[str, float] = {}
        self._confirms = profile.history_check == "confirm"  # until `close`, criteria want reruns
        self.board = Board(self.phases)
        self.results: dict[str, PhaseResult] = {}  # each read once, when its job has ended
        self._stop, self._why = threading.Event(), "the run was interrupted"
        self._submitting: Sequence[Submission] = ()
        self._lost = LostAnswers(backend, profile.limits.scheduler_patience_s)
        self._ending = threading.Lock()
        self._ended_ids: set[str] = set()
        self._earlier = earlier
        self.fence = ControllerFence(run)
        self.journal = FencedJournal(run, self.fence)
        self._thread = threading.Thread(
            target=self._watch_jobs, name="clustersmoke-watch", daemon=True
        )

    def start(self) -> None:
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

    @property
    def outcomes(self) -> dict[str, Judgement]:
        return self.board.outcomes

    def cancel(self) -> None:
        """End every job. Returns at once, so that a signal handler may call it.

        It uses another thread, since the watch thread may be waiting for a slow scheduler.
        """
        if not self._stop.is_set():
            self._stop.set()
            _run_in_thread(self._cancel_quietly)

    def close(self, why: str = "") -> list[str]:
        """Cancel what is left, since the run ended: `why`. Waits a bounded time for the scheduler.

        Returns the phases whose submission the scheduler did not answer: their jobs may still
        appear in its queue.
        """
        self._why = why if why and not self._stop.is_set() else self._why
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=CLOSE_S)
        if not self._thread.is_alive():
            self._backend.close()
            with contextlib.suppress(OSError):  # a full disk must not hide the verdict
                self.journal.write("closed")
            return []
        _run_in_thread(self._cancel_quietly).join(timeout=LAST_CALL_S)
        jobs = self._submitting
        if not jobs:
            return []
        _run_in_thread(lambda: self._cancel_named(jobs)).join(timeout=LAST_CALL_S)
        return [job.phase.name for job in jobs]

    @property
    def is_detachable(self) -> bool:
        """Whether all phases were submitted, to be left to the scheduler."""
        return self._detaches and not (self._thread.is_alive() or self._stop.is_set())

    def detach(self) -> int:
        """Leave the jobs to the scheduler; return how many there are."""
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
                self._take_answers()
                self._submit_ready(poller)
                poller.poll(self._watched.values())
                self._check_jobs(poller)
                self._stop.wait(TICK_S)
            if self._stop.is_set() or not self._detaches:
                self._cancel_all()
        except BaseException as error:  # raised again in `Board.wait`
            self.board.fail(error)
            self._cancel_quietly()

    def _restore_jobs(self) -> None:
        """Take up the jobs of earlier controllers; phases that they did not submit wait."""
        if self._earlier is None:
            return
        self.journal.write("attached")
        for name in self._earlier.jobs:
            if name not in self.phases and (rerun := RERUN.fullmatch(name)):
                self._add_rerun(name, rerun[1])
        jobs = sort_jobs(self._earlier, self.phases, self.run)
        self._submitted_wall |= {job.phase: job.intended for job in self._earlier.jobs.values()}
        self._queue.drop(self._earlier.jobs)
        for name in jobs.ended:
            result = self.results[name] = collect_phase(self.run.phase(name))
            self.board.finish(name, Judgement(result.outcome, result.reason), result.run_s)
        for job, known in jobs.submitted:
            self._backend.adopt(job, known.job_id)
            after = job.phase.after.value if job.phase.after.value in self.phases else ""
            self._watched[job.phase.name] = watch_job(
                job, known.job_id, after, time.time() - known.intended
            )
            self.board.set_submitted(job.phase.name, known.job_id, known.intended, None)
        for lost in jobs.unanswered:
            why = "the controller before this one ended before it had an answer"
            self._expect_answer(LostAnswer(lost, lost[0].phase.after.value, why, resubmits=True))

    def _has_work(self) -> bool:
        if self._queue.waiting or self._lost.waiting:
            return True
        return not self._detaches and bool(self._watched or self._confirms)

    def _take_requests(self) -> None:
        """Queue the reruns that criteria have requested. A rerun is a phase of its own name, which
        no criterion judges and no report lists."""
        for name, base in self.run.requested_reruns().items() if self._confirms else ():
            if name not in self.phases and base in self.results:
                self._add_rerun(name, base)

    def _add_rerun(self, name: str, base: str) -> None:
        self.phases[name] = replace(self.phases[base], name=name, trace=None)
        self.board.add(name)
        self._queue.waiting.append(self.phases[name])

    def _run_preflight(self) -> None:
        """Ask the scheduler about all phases; finish those that it would not run."""
        if self._check is None:
            return
        self.board.set_waiting_reason("preflight")
        try:
            checked = self._check(list(self._queue.waiting), self.run)
        except OSError as error:
            phases, self._queue.waiting = self._queue.waiting, []
            self._refuse_without_room(phases, error)
            return
        self.board.set_waiting_reason("")
        self._starts = checked.starts
        for line in checked.lines:
            self.board.post("preflight", line)
        refused = [phase for phase in self._queue.waiting if phase.name in checked.findings]
        for phase in refused:
            findings = checked.findings[phase.name]
            self._queue.waiting.remove(phase)
            prepare_jobs([phase], self.profile, self.run)
            self.journal.write("refused", phase=phase.name, words=findings[0].cause)
            self._finish(phase.name, judge_refusal(findings), None, "", findings)

    def _submit_ready(self, poller: Poller) -> None:
        while not self._stop.is_set():
            phases = self._queue.take(self._watched, self.outcomes, self._lost.count())
            if not phases:
                return
            try:
                self._submit(phases)
            except OSError as error:
                self._refuse_without_room(phases, error)
            poller.poll_soon()

    def _refuse_without_room(self, phases: Iterable[Phase], error: OSError) -> None:
        """Finish phases whose files have no room in the shared directory; raise another error."""
        if not is_full(error):
            raise error
        self._submitting, lost = (), "the phase was not submitted"
        finding = diagnose.explain_full_directory(self.profile.shared_dir, lost)
        for phase in phases:
            self._finish(phase.name, Judgement("never_ran", finding.cause), None, "", [finding])

    def _submit(self, phases: Sequence[Phase]) -> None:
        """Submit one phase, or several that differ in names and arguments as one array."""
        before = self._watched.get(phases[0].after.value)
        judged = self.outcomes.get(phases[0].after.value)
        jobs = prepare_jobs(phases, self.profile, self.run, self._lanes.behind)
        if judged is not None and judged.outcome != "passed":
            for phase in phases:
                self._give_up(phase.name)
            return
        for job in jobs:
            create_phase(job.directory, job.phase.nodes.value)
            mark = {"token": job.token, **self._fault_mark(job.phase.name)}
            self.journal.write("intent", phase=job.phase.name, **mark)
            self._submitted_wall[job.phase.name] = time.time()
        self._submitting = jobs
        try:
            job_ids = self._call_backend(jobs, before.job_id if before else "")
        except Unanswered as silence:
            self._submitting = ()
            self._expect_answer(LostAnswer(jobs, before.phase if before else "", str(silence)))
            return
        except Refused as refusal:
            self._submitting = ()
            if words := self._queue.put_back(phases, refusal):
                self.board.post("scheduler", words)
                return
            for job in jobs:
                self.journal.write("refused", phase=job.phase.name, words=str(refusal))
                finding = diagnose.explain_refusal(refusal, job.directory.batch_script)
                judgement = Judgement("never_ran", f"the scheduler refused the job: {refusal}")
                self._finish(job.phase.name, judgement, None, "", [finding])
            return
        self._watch(jobs, job_ids, before.phase if before else "")

    def _watch(self, jobs: Sequence[Submission], job_ids: Sequence[str], after: str) -> None:
        for job, job_id in zip(jobs, job_ids, strict=True):
            # First, so that any later error cancels the job.
            self._watched[job.phase.name] = watch_job(job, job_id, after)
        self._submitting = ()
        self._queue.note_success()
        if self._detaches:
            self._lanes.add(job_ids)
        for job, job_id in zip(jobs, job_ids, strict=True):
            name = job.phase.name
            self.journal.write("submitted", phase=name, job_id=job_id)
            start = self._starts.get(name)
            self.board.set_submitted(name, job_id, self._submitted_wall[name], start)

    def _expect_answer(self, lost: LostAnswer) -> None:
        names = [job.phase.name for job in lost.jobs]
        self._lost.add(lost)
        self.journal.write("unanswered", phases=names, words=lost.why)
        words = f"no clear answer for {', '.join(names)}; looking for the job: {lost.why}"
        self.board.post("scheduler", words)

    def _take_answers(self) -> None:
        """Watch the jobs that were found, and give up those that were not."""
        for lost, found in self._lost.look():
            if job_ids := found or lost.give_up():
                self._watch(lost.jobs, job_ids, lost.after)
            elif lost.is_absent:
                self._queue.waiting[:0] = [job.phase for job in lost.jobs]
            else:
                waited_s = self._lost.patience_s
                reason = f"no job was found within {waited_s:g} s after this: {lost.why}"
                self._drop(lost, Judgement("never_ran", reason))

    def _drop(self, lost: LostAnswer, judgement: Judgement) -> None:
        """Finish jobs that were given up, whose ids are unknown."""
        self._cancel_named(lost.jobs)
        for job in lost.jobs:
            finding = diagnose.explain_lost_answer(judgement, job.directory.batch_script)
            self._finish(job.phase.name, judgement, None, "", [finding])

    def _call_backend(self, jobs: Sequence[Submission], after: str) -> list[str]:
        if len(jobs) == 1 or not isinstance(self._backend, ArrayBackend):
            return [self._backend.submit(job, after) for job in jobs]
        started = count_started(self._watched) + self._lost.count()
        room = self.profile.limits.max_jobs - started
        return self._backend.submit_array(jobs, max(1, room), after)

    def _check_jobs(self, poller: Poller) -> None:
        for job in list(self._watched.values()):
            if self._stop.is_set():
                return  # what was just seen of it may be our own cancellation
            if job.after and not self._may_start(job):
                continue
            if job.is_over():
                self._settle(job)
                poller.poll_soon()  # it leaves its nodes to another
                continue
            if job.was_requeued:
                job.was_requeued = False
                self.journal.write("requeued", phase=job.phase, job_id=job.job_id)
                self._backend.start_now(job.job_id)
            limit = self.profile.limits.queue_wait_s
            if not job.running and limit and time.monotonic() - job.submitted_at > limit:
                reason = f"queue: the job did not start within {limit:g} s"
                self._settle(job, Judgement("never_ran", reason))
            elif job.is_straggling():
                job.cancel(self._backend)
                self._settle(job)
            else:
                self.board.update(job)

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
            job.cancel(self._backend)
            self._give_up(job.phase, job)
        return False

    def _give_up(self, name: str, job: WatchedJob | None = None) -> None:
        """Finish a phase that must not run, because the one before it did not pass."""
        before = self.phases[name].after.value
        finding = diagnose.explain_order(before, self.outcomes[before])
        judgement = Judgement("never_ran", finding.cause)
        self._finish(
            name, judgement, job.state if job else None, job.job_id if job else "", [finding]
        )

    def _settle(self, job: WatchedJob, cancelled: Judgement | None = None) -> None:
        if job.may_run and job.job_id not in self._ended_ids and not job.has_succeeded():
            job.cancel(self._backend)
        backend = None if self._stop.is_set() else self._backend
        result, judgement, findings = judge_end(job, backend, cancelled)
        self._finish(job.phase, judgement, job.state, job.job_id, findings, result)

    def _finish(
        self,
        name: str,
        judgement: Judgement,
        state: JobState | None,
        job_id: str,
        findings: list[Finding],
        result: PhaseResult | None = None,
    ) -> None:
        self.fence.check()
        self._watched.pop(name, None)
        self.results[name] = write_result(
            self.run.phase(name),
            self.profile,
            result,
            judgement,
            job_id,
            state,
            findings,
            self._submitted_wall.get(name),
            {**self._fault_mark(name), "estimated_start": self._starts.get(name)},
        )
        self.journal.write("ended", phase=name, job_id=job_id, outcome=judgement.outcome)
        self.board.finish(name, judgement, self.results[name].run_s)

    def _fault_mark(self, name: str) -> dict[str, str]:
        """Marks the records of a phase that a fault is staged in."""
        staged = self.phases[name].staged
        return {"fault": staged.fault} if staged else {}

    def _cancel_all(self) -> None:
        """End every job with one call, and wait a while for the scheduler to confirm each."""
        jobs = list(self._watched.values())
        self._end_jobs()
        deadline = time.monotonic() + CANCEL_CONFIRM_S
        while time.monotonic() < deadline and not all(job.ended_at for job in jobs):
            states = self._backend.states([job.job_id for job in jobs])
            for job in jobs:
                if job.job_id in states:
                    job.record_state(states[job.job_id])
            self._end_jobs()  # again, if the scheduler did not accept it
            time.sleep(TICK_S)
        for job in jobs:
            left = job.state.left if job.state else ""
            reason = f"{self._why}{f'; {left}' if left else ''}"
            interrupted = Judgement("cancelled", reason)
            self._settle(job, None if job.failed_first else interrupted)
        while self._lost.waiting:
            lost = self._lost.waiting.pop()
            why = f"{self._why} before the job was found: {lost.why}"
            lost.give_up()
            self._drop(lost, Judgement("cancelled", why))
        while self._queue.waiting:
            phase = self._queue.waiting.pop(0)
            judgement = Judgement("cancelled", f"{self._why} before it was submitted")
            self._finish(phase.name, judgement, None, "", [])

    def _end_jobs(self) -> None:
        """End the jobs that were not ended yet, with one call. Any thread may call this."""
        with self._ending:
            watched = {job.job_id: job for job in list(self._watched.values()) if job.is_ours}
            jobs = watched.keys() - self._ended_ids
            self.fence.check()
            for job_id in jobs:
                watched[job_id].expect_end()
            if jobs and self._backend.cancel(sorted(jobs)):
                self._ended_ids |= jobs
                self.journal.write("cancelled", jobs=sorted(jobs))

    def _cancel_named(self, jobs: Sequence[Submission]) -> None:
        """Cancel jobs by their name, unless another controller may have submitted them again."""
        with contextlib.suppress(Superseded):
            self.fence.check()
            self._backend.cancel_named(jobs[0])  # the jobs of an array have one name

    def _cancel_quietly(self) -> None:
        try:
            self._end_jobs()
        except Exception as error:
            with contextlib.suppress(OSError):
                self.journal.write("cancel_failed", why=str(error))


def _run_in_thread(call: Callable[[], object]) -> threading.Thread:
    """Run a call in a daemon thread."""
    thread = threading.Thread(target=call, name="clustersmoke-cancel", daemon=True)
    thread.start()
    return thread
