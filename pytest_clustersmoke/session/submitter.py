"""Submits the phases of a run, and takes up the jobs whose submission was not answered.

All of it is called by the watch thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.job_results import read_claim
from ..evidence.locks import ControllerFence, Superseded
from ..evidence.run_directory import RunDir, create_phase
from ..evidence.run_journal import FencedJournal, RunJournal
from ..evidence.whole_files import is_full
from ..jobs.backend import ArrayBackend, Backend, Refused, Submission, Unanswered, prepare_jobs
from ..jobs.job_watch import WatchedJob
from ..jobs.outcome import Judgement
from ..jobs.poller import watch_job
from .cancellation import Cancellation
from .earlier_jobs import EarlierJobs
from .job_end import judge_order
from .live.board import Board
from .lost_answers import LostAnswer, LostAnswers, withdraw
from .phase_ledger import PhaseLedger
from .phase_queue import Lanes, PhaseQueue, count_started

# Ends a phase that has no job: its name, its judgement, its findings.
Finish = Callable[[str, Judgement, Sequence[Finding]], None]


class Submitter:
    """`watched` has the run's jobs by phase, those joining it that are submitted; `phases` are all
    of the run, by name; `finish` ends a phase of which there is no job. If it `detaches`, the
    scheduler keeps the limit on jobs."""

    def __init__(
        self,
        run: RunDir,
        profile: Profile,
        phases: Mapping[str, Phase],
        backend: Backend,
        fence: ControllerFence,
        journal: FencedJournal,
        ending: Cancellation,
        board: Board,
        watched: dict[str, WatchedJob],
        ledger: PhaseLedger,
        finish: Finish,
        detaches: bool = False,
    ) -> None:
        self._run, self._profile, self._phases, self._backend = run, profile, phases, backend
        self._fence, self._journal, self._ending = fence, journal, ending
        self._board = board
        self._watched, self._ledger, self._finish = watched, ledger, finish
        self.queue = PhaseQueue(phases, backend, profile.limits, has_cap=not detaches)
        self._detaches, self._lanes = detaches, Lanes(profile.limits.max_jobs)
        self._lost = LostAnswers(backend, profile.limits.scheduler_patience_s)
        self._unheld: dict[str, str] = {}  # jobs not yet held, and the phases that they wait for
        self._said: set[str] = set()  # of refusals, since the last job that was accepted
        self.starts: Mapping[str, float] = {}  # when jobs might start, by phase
        self.submitted: dict[str, float] = {}  # when they were submitted, in Unix seconds
        self._queued: dict[str, float] = {}  # the same by the scheduler's clock, by job

    @property
    def has_work(self) -> bool:
        """Whether phases wait to be submitted, or jobs to be found."""
        return bool(self.queue.waiting or self._lost.waiting)

    def restore(self, earlier: RunJournal, jobs: EarlierJobs, again: Sequence[str]) -> None:
        """Take up the jobs that earlier controllers submitted and that have not ended; the phases
        `again` are to be submitted once more."""
        self.submitted |= {job.phase: job.intended for job in earlier.jobs.values()}
        self.queue.drop(earlier.jobs.keys() - {*again})
        for job, known in jobs.submitted:
            # Of a controller that ended before the scheduler confirmed that the job had.
            job.directory.result.unlink(missing_ok=True)
            self._backend.adopt(job, known.job_id)
            # The queue's limit counts from now: nobody could keep it meanwhile.
            after = self._phase_before(job.phase, earlier)
            watched = self._watched[job.phase.name] = watch_job(job, known.job_id, after)
            watched.is_sure, watched.submitted = False, known.queued
            watched.check_files()  # whether it has started: the scheduler may have been set back
            self._board.set_submitted(job.phase.name, known.job_id, known.intended, None)
        for lost in jobs.unanswered:
            why = "the controller before this one ended before it had an answer"
            after = self._phase_before(lost[0].phase, earlier)
            self._expect_answer(LostAnswer(lost, after, why, resubmits=True))
        if again:
            self._look_at_jobs()  # one that it has not shown may be another's, and is not cancelled
        for name in again:
            self.hold_followers(name)

    def _look_at_jobs(self) -> None:
        """Ask the scheduler once how the watched jobs are."""
        states = self._backend.states([job.job_id for job in self._watched.values()])
        for job in self._watched.values():
            if job.job_id in states:
                job.record_state(states[job.job_id])

    def _phase_before(self, phase: Phase, earlier: RunJournal) -> str:
        """The phase of this run that this one's job waits for; empty if there is none. If that was
        submitted again later, there is none either: this one's job had started behind its job
        before."""
        before, submitted = phase.after.value, [*earlier.jobs]  # in the order of submission
        if before not in self._phases:
            return ""
        again = before in submitted and submitted.index(before) > submitted.index(phase.name)
        return "" if again else before

    def submit_next(self, outcomes: Mapping[str, Judgement]) -> bool:
        """Submit the phases whose turn it is together, if there are any; return whether there
        were. `outcomes`: the judgements so far, by phase."""
        phases = self.queue.take(self._watched, outcomes, self._lost.count())
        if phases:
            self._submit(phases, outcomes)
        return bool(phases)

    def _submit(self, phases: Sequence[Phase], outcomes: Mapping[str, Judgement]) -> None:
        """Submit one phase, or several that differ in names and arguments as one array."""
        before = self._watched.get(phases[0].after.value)
        judged = outcomes.get(phases[0].after.value)
        is_due = judged is None or judged.outcome == "passed"
        try:
            jobs = self._prepare(phases)
            if is_due:
                with self._ending.step(*(phase.name for phase in phases)):
                    self._intend(jobs)
        except Superseded:
            raise
        except OSError as error:
            self.finish_unwritten(phases, error)
            return
        if judged is not None and not is_due:
            for phase in phases:
                self._finish(phase.name, *judge_order(phase.after.value, judged))
            return
        self._call(phases, jobs, before)

    def _prepare(self, phases: Sequence[Phase]) -> list[Submission]:
        places = [self._ledger.directory(phase) for phase in phases]
        avoid = self._ledger.avoided(phases[0].name)
        behind = self._lanes.find_behind(len(phases)) if self._detaches else ""
        self._fence.check()
        check = self._fence.check
        jobs = prepare_jobs(phases, self._profile, places, behind, avoid, check)
        if len(phases) == 1:
            return jobs
        room = self._profile.limits.max_jobs
        if not self._detaches:  # otherwise all that was submitted before ends first
            room -= count_started(self._watched) + self._lost.count()
        return [replace(job, at_once=max(1, room)) for job in jobs]

    def _intend(self, jobs: Sequence[Submission]) -> None:
        """Journal what is about to be submitted. Raises OSError, and then nothing must be."""
        for job in jobs:
            # Of a controller before, which gave the phase up: it would count as this job's end.
            job.directory.result.unlink(missing_ok=True)
            create_phase(job.directory, job.phase.nodes.value)
            number = {"attempt": job.directory.number} if job.directory.number else {}
            task = {"index": job.index, "at_once": job.at_once} if job.in_array else {}
            mark = {"token": job.token, **number, **task, **fault_mark(job.phase)}
            self._journal.write("intent", phase=job.phase.name, **mark)
            self.submitted[job.phase.name] = time.time()
        self._journal.sync()
        self._ending.submitting = jobs

    def _call(
        self, phases: Sequence[Phase], jobs: Sequence[Submission], before: WatchedJob | None
    ) -> None:
        after = before.phase if before else ""
        try:
            job_ids = self._call_backend(jobs, before.job_id if before else "")
        except Unanswered as silence:
            refused = silence.refused_so_far
            self._expect_answer(LostAnswer(jobs, after, str(silence), refused_so_far=refused))
        except Refused as refusal:
            self._ending.submitting = ()
            self._take_refusal(phases, jobs, refusal)
        except Superseded:
            raise
        except OSError as error:  # the batch script cannot be written
            self._ending.submitting = ()
            self._ending.end_named(jobs)
            self.finish_unwritten(phases, error)
        else:
            self._watch(jobs, job_ids, after)

    def finish_unwritten(self, phases: Iterable[Phase], error: OSError) -> None:
        """Finish phases whose files have no room in the shared directory; raise another error."""
        if not is_full(error):
            raise error
        from ..diagnose import explain_full_directory

        lost = "the phase was not submitted"
        for phase in phases:
            finding = explain_full_directory(self._profile.shared_dir, lost)
            self._finish(phase.name, Judgement("never_ran", finding.cause), [finding])

    def _call_backend(self, jobs: Sequence[Submission], after: str) -> list[str]:
        self._fence.check()
        self._ending.check_place()
        if len(jobs) == 1 or not isinstance(self._backend, ArrayBackend):
            return [self._backend.submit(job, after) for job in jobs]
        return self._backend.submit_array(jobs, jobs[0].at_once or 1, after)

    def _take_refusal(
        self, phases: Sequence[Phase], jobs: Sequence[Submission], refusal: Refused
    ) -> None:
        """Try again later, or finish the phases with the scheduler's message."""
        if words := self.queue.put_back(phases, refusal, bool(self._watched)):
            for job in jobs if refusal.at_limit else ():  # else it may have taken them nevertheless
                self._journal.write("refused", phase=job.phase.name, words=str(refusal))
            if words not in self._said:  # two limits may be met in turn
                self._said.add(words)
                self._board.post("scheduler", words)
            return
        from ..diagnose import explain_refusal

        for job in jobs:
            # Should slurmctld have taken the job all the same, it ends before it claims the phase.
            with contextlib.suppress(OSError):
                withdraw(job.directory, job.token, "the scheduler refused it")
            self._journal.write("refused", phase=job.phase.name, words=str(refusal))
            finding = explain_refusal(refusal, job.directory.batch_script, job.avoid)
            without = f" (without {', '.join(job.avoid)})" if job.avoid else ""
            reason = f"the scheduler refused the job{without}: {refusal}"
            judgement = Judgement("never_ran", reason)
            self._finish(job.phase.name, judgement, [finding])

    def _watch(self, jobs: Sequence[Submission], job_ids: Sequence[str], after: str) -> None:
        for job, job_id in zip(jobs, job_ids, strict=True):
            # First, so that any later error cancels the job.
            self._watched[job.phase.name] = watch_job(job, job_id, after)
        self._ending.submitting = ()
        self.queue.note_accepted(job.phase for job in jobs)
        self._said.clear()
        if self._detaches:
            self._lanes.add(job_ids)
        for job, job_id in zip(jobs, job_ids, strict=True):
            name = job.phase.name
            self._journal.write("submitted", phase=name, job_id=job_id)
            start = self.starts.get(name)
            self._board.set_submitted(name, job_id, self.submitted[name], start)
        with contextlib.suppress(OSError):  # the intents are there, and the jobs have their names
            self._journal.sync()

    def _expect_answer(self, lost: LostAnswer) -> None:
        names = [job.phase.name for job in lost.jobs]
        with self._ending.step(*names):
            self._ending.submitting = ()
            self._lost.add(lost)
        self._journal.write("unanswered", phases=names, words=lost.why)
        words = f"no clear answer for {', '.join(names)}; looking for the job: {lost.why}"
        self._board.post("scheduler", words)

    def note_queued(self) -> None:
        """Journal when the scheduler says that each job was submitted. One that comes back with an
        older state shows that time again, and only by it a later controller knows the state."""
        for job in self._watched.values():
            if job.submitted is not None and self._queued.get(job.job_id) != job.submitted:
                self._queued[job.job_id] = job.submitted
                self._journal.write("queued", phase=job.phase, job_id=job.job_id, at=job.submitted)

    def take_answers(self) -> None:
        """Watch the jobs that were found, and give up those that were not; hold those that the
        scheduler has shown meanwhile."""
        unheld, self._unheld = self._unheld, {}
        for name, before in unheld.items():
            if name in self._watched:
                self._hold(self._watched[name], before)
        for lost, found in self._lost.look():
            if job_ids := found or self._give_up(lost):
                self._watch(lost.jobs, job_ids, lost.after)
            elif lost.is_absent and lost.refused_so_far:
                refusal = Refused(lost.why, for_now=True)
                self._take_refusal([job.phase for job in lost.jobs], lost.jobs, refusal)
            elif lost.is_absent:
                self.queue.put_first(job.phase for job in lost.jobs)
            else:
                waited_s = self._lost.patience_s
                reason = f"no job was found within {waited_s:g} s after this: {lost.why}"
                self._ending.end_named(lost.jobs)
                self._drop(lost.jobs, Judgement("never_ran", reason))

    def try_again(self, name: str) -> None:
        """Submit another job for a phase whose last one the cluster took away."""
        self._watched.pop(name, None)
        self._board.add(name)
        self.queue.put_first([self._phases[name]])

    def hold_followers(self, name: str) -> None:
        """Let the phases wait again that wait in the queue for the job of this one, which did not
        pass: theirs could never start. One that has started runs on."""
        for job in [job for job in self._watched.values() if job.after == name]:
            self._hold(job, name)
        for lost in [lost for lost in self._lost.waiting if lost.after == name]:
            self._lost.waiting.remove(lost)
            if job_ids := self._give_up(lost):
                self._watch(lost.jobs, job_ids, "")
                continue
            for each in lost.jobs:
                self._wait_again(each.phase.name, name)

    def _hold(self, job: WatchedJob, before: str) -> None:
        """Take a job out of the queue, and submit its phase again later. While the scheduler has
        not shown it, nobody can cancel it, so it is left for as long."""
        job.check_files()
        if not (job.running or job.may_end or job.has_left_queue):
            self._unheld[job.phase] = before
        elif job.running or self._withdraw(job, "the phase that it waits for is tried again"):
            job.after = ""
        else:
            self._ending.end(job)
            self._wait_again(job.phase, before)

    def give_up_follower(self, job: WatchedJob) -> None:
        """End a job that must not run, because the phase that it waits for did not pass. While the
        scheduler has not shown it, only the job itself can: as it starts."""
        has_started = self._withdraw(job, "the phase that it waits for did not pass")
        if has_started or job.may_end:
            self._ending.end(job)

    def _withdraw(self, job: WatchedJob, why: str) -> bool:
        """Give a job up that has not started; return whether it has meanwhile."""
        self._fence.check()
        with contextlib.suppress(OSError):  # it is cancelled as well, if the scheduler shows it
            withdraw(job.directory, job.token, why)
        claim = read_claim(job.directory)
        return claim is not None and claim.token == job.token

    def _wait_again(self, name: str, before: str) -> None:
        with self._ending.step(name):
            self._journal.write("held", phase=name)
            self._watched.pop(name, None)
            self._board.add(name)
            self._board.post(name, f"waits for {before}, which is tried again")
            self.queue.waiting.append(self._phases[name])
        self.hold_followers(name)

    def _give_up(self, lost: LostAnswer) -> list[str]:
        """Give jobs up; return their ids if they have started meanwhile."""
        self._fence.check()
        return self._lost.adopt(lost, lost.give_up())

    def end_searches(self) -> None:
        """Give up the jobs whose ids are not known, and cancel them by their names."""
        for lost in self._lost.waiting:
            self._note_started(lost, self._give_up(lost))
            self._ending.end_named(lost.jobs)

    def settle_rest(self, why: str, submitting: Sequence[Submission]) -> None:
        """Finish the phases whose job is not known to exist, since the run ends: `why`.
        `submitting`: the jobs of a submission that the scheduler does not answer."""
        if submitting:
            reason = f"{why} before the scheduler answered the submission"
            unanswered = LostAnswer(submitting, "", reason)
            self._note_started(unanswered, unanswered.claimed_ids())
            self._drop(submitting, Judgement("cancelled", reason))
        while self._lost.waiting:
            lost = self._lost.waiting.pop()
            self._note_started(lost, lost.give_up())
            self._ending.unfound |= {job.phase.name for job in lost.jobs}
            judgement = Judgement("cancelled", f"{why} before the job was found: {lost.why}")
            self._drop(lost.jobs, judgement)
        while self.queue.waiting:
            phase = self.queue.waiting.pop(0)
            judgement = Judgement("cancelled", f"{why} before it was submitted")
            self._finish(phase.name, judgement, [])

    def _note_started(self, lost: LostAnswer, job_ids: Iterable[str]) -> None:
        """Note the ids of jobs that had started before they were given up: they may run on."""
        for job, job_id in zip(lost.jobs, job_ids, strict=False):
            if job.phase.name not in self._ending.unconfirmed:
                self._ending.unconfirmed[job.phase.name] = job_id
                self._journal.write("submitted", phase=job.phase.name, job_id=job_id)

    def _drop(self, jobs: Sequence[Submission], judgement: Judgement) -> None:
        """Finish jobs that were given up, whose ids are unknown."""
        from ..diagnose import explain_lost_answer

        for job in jobs:
            finding = explain_lost_answer(judgement, job.directory.batch_script)
            self._finish(job.phase.name, judgement, [finding])


def fault_mark(phase: Phase) -> dict[str, Any]:
    """Marks the records of a phase that a fault is staged in."""
    return {"fault": phase.staged.fault} if phase.staged else {}
