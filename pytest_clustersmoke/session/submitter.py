"""Submits the phases of a run, and takes up the jobs whose submission was not answered.

All of it is called by the watch thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import diagnose
from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.locks import ControllerFence, Superseded
from ..evidence.run_directory import RunDir, create_phase
from ..evidence.run_journal import FencedJournal, RunJournal
from ..jobs.backend import ArrayBackend, Backend, Refused, Submission, Unanswered, prepare_jobs
from ..jobs.job_watch import WatchedJob, watch_job
from ..jobs.outcome import Judgement
from .earlier_jobs import EarlierJobs
from .live.board import Board
from .lost_answers import LostAnswer, LostAnswers
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
        board: Board,
        watched: dict[str, WatchedJob],
        finish: Finish,
        detaches: bool = False,
    ) -> None:
        self._run, self._profile, self._phases, self._backend = run, profile, phases, backend
        self._fence, self._journal, self._board = fence, journal, board
        self._watched, self._finish = watched, finish
        self.queue = PhaseQueue(phases, backend, profile.limits, has_cap=not detaches)
        self._detaches, self._lanes = detaches, Lanes(profile.limits.max_jobs)
        self._lost = LostAnswers(backend, profile.limits.scheduler_patience_s)
        self.starts: Mapping[str, float] = {}  # when jobs might start, by phase
        self.submitted: dict[str, float] = {}  # when they were submitted, in Unix seconds
        self.under_way: Sequence[Submission] = ()  # those whose answer is awaited

    @property
    def has_work(self) -> bool:
        """Whether phases wait to be submitted, or jobs to be found."""
        return bool(self.queue.waiting or self._lost.waiting)

    def restore(self, earlier: RunJournal, jobs: EarlierJobs) -> None:
        """Take up the jobs that earlier controllers submitted and that have not ended."""
        self.submitted |= {job.phase: job.intended for job in earlier.jobs.values()}
        self.queue.drop(earlier.jobs)
        for job, known in jobs.submitted:
            self._backend.adopt(job, known.job_id)
            after = job.phase.after.value if job.phase.after.value in self._phases else ""
            self._watched[job.phase.name] = watch_job(
                job, known.job_id, after, time.time() - known.intended
            )
            self._board.set_submitted(job.phase.name, known.job_id, known.intended, None)
        for lost in jobs.unanswered:
            why = "the controller before this one ended before it had an answer"
            self._expect_answer(LostAnswer(lost, lost[0].phase.after.value, why, resubmits=True))

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
        jobs = prepare_jobs(phases, self._profile, self._run, self._lanes.behind)
        if judged is not None and judged.outcome != "passed":
            for phase in phases:
                finding = diagnose.explain_order(phase.after.value, judged)
                self._finish(phase.name, Judgement("never_ran", finding.cause), [finding])
            return
        for job in jobs:
            create_phase(job.directory, job.phase.nodes.value)
            mark = {"token": job.token, **fault_mark(job.phase)}
            self._journal.write("intent", phase=job.phase.name, **mark)
            self.submitted[job.phase.name] = time.time()
        self.under_way = jobs
        try:
            job_ids = self._call_backend(jobs, before.job_id if before else "")
        except Unanswered as silence:
            self.under_way = ()
            self._expect_answer(LostAnswer(jobs, before.phase if before else "", str(silence)))
        except Refused as refusal:
            self.under_way = ()
            self._take_refusal(phases, jobs, refusal)
        else:
            self._watch(jobs, job_ids, before.phase if before else "")

    def _call_backend(self, jobs: Sequence[Submission], after: str) -> list[str]:
        if len(jobs) == 1 or not isinstance(self._backend, ArrayBackend):
            return [self._backend.submit(job, after) for job in jobs]
        started = count_started(self._watched) + self._lost.count()
        room = self._profile.limits.max_jobs - started
        return self._backend.submit_array(jobs, max(1, room), after)

    def _take_refusal(
        self, phases: Sequence[Phase], jobs: Sequence[Submission], refusal: Refused
    ) -> None:
        """Try again later, or finish the phases with the scheduler's message."""
        if words := self.queue.put_back(phases, refusal):
            self._board.post("scheduler", words)
            return
        for job in jobs:
            self._journal.write("refused", phase=job.phase.name, words=str(refusal))
            finding = diagnose.explain_refusal(refusal, job.directory.batch_script)
            judgement = Judgement("never_ran", f"the scheduler refused the job: {refusal}")
            self._finish(job.phase.name, judgement, [finding])

    def _watch(self, jobs: Sequence[Submission], job_ids: Sequence[str], after: str) -> None:
        for job, job_id in zip(jobs, job_ids, strict=True):
            # First, so that any later error cancels the job.
            self._watched[job.phase.name] = watch_job(job, job_id, after)
        self.under_way = ()
        self.queue.note_success()
        if self._detaches:
            self._lanes.add(job_ids)
        for job, job_id in zip(jobs, job_ids, strict=True):
            name = job.phase.name
            self._journal.write("submitted", phase=name, job_id=job_id)
            start = self.starts.get(name)
            self._board.set_submitted(name, job_id, self.submitted[name], start)

    def _expect_answer(self, lost: LostAnswer) -> None:
        names = [job.phase.name for job in lost.jobs]
        self._lost.add(lost)
        self._journal.write("unanswered", phases=names, words=lost.why)
        words = f"no clear answer for {', '.join(names)}; looking for the job: {lost.why}"
        self._board.post("scheduler", words)

    def take_answers(self) -> None:
        """Watch the jobs that were found, and give up those that were not."""
        for lost, found in self._lost.look():
            if job_ids := found or lost.give_up():
                self._watch(lost.jobs, job_ids, lost.after)
            elif lost.is_absent:
                self.queue.waiting[:0] = [job.phase for job in lost.jobs]
            else:
                waited_s = self._lost.patience_s
                reason = f"no job was found within {waited_s:g} s after this: {lost.why}"
                self._drop(lost, Judgement("never_ran", reason))

    def cancel_all(self, why: str) -> None:
        """Finish the phases whose job is not known to exist, since the run ends: `why`."""
        while self._lost.waiting:
            lost = self._lost.waiting.pop()
            lost.give_up()
            judgement = Judgement("cancelled", f"{why} before the job was found: {lost.why}")
            self._drop(lost, judgement)
        while self.queue.waiting:
            phase = self.queue.waiting.pop(0)
            judgement = Judgement("cancelled", f"{why} before it was submitted")
            self._finish(phase.name, judgement, [])

    def _drop(self, lost: LostAnswer, judgement: Judgement) -> None:
        """Finish jobs that were given up, whose ids are unknown."""
        self.cancel_named(lost.jobs)
        for job in lost.jobs:
            finding = diagnose.explain_lost_answer(judgement, job.directory.batch_script)
            self._finish(job.phase.name, judgement, [finding])

    def cancel_named(self, jobs: Sequence[Submission]) -> None:
        """Cancel jobs by their name, unless another controller may have submitted them again."""
        with contextlib.suppress(Superseded):
            self._fence.check()
            self._backend.cancel_named(jobs[0])  # the jobs of an array have one name


def fault_mark(phase: Phase) -> dict[str, Any]:
    """Marks the records of a phase that a fault is staged in."""
    return {"fault": phase.staged.fault} if phase.staged else {}
