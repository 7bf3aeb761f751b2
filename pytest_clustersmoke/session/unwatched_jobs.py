"""Jobs that ended while no process watched them: each has its own outcome, if that is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.job_results import read_claim
from ..evidence.phase_attempts import read_attempts
from ..evidence.run_directory import PhaseDir, RunDir, create_once, read_json
from ..evidence.run_journal import FencedJournal, JournalledJob, RunJournal
from ..evidence.scheduler_record import JobState
from ..evidence.telemetry import parse_finite, parse_int, parse_text
from ..jobs.backend import COMMENT_BEGINS, RunBackend
from ..jobs.job_watch import COMPLETED_GRACE_S, WatchedJob
from ..jobs.outcome import Judgement
from .job_end import judge_end, write_result
from .lost_answers import withdraw
from .phase_ledger import read_ending

UNANSWERED = Judgement(
    "never_ran",
    "its submission had no answer when the run's process ended, and no job of it was found",
)


def withdraw_unanswered(run: RunDir, journal: RunJournal) -> None:
    """Give up the submissions that had no answer: a job of theirs that starts later ends at once,
    and one that had started has a claim by then. Raises OSError."""
    for job in journal.unanswered:
        if job.token:
            words = "the run's process had ended before it had an answer"
            withdraw(run.phase(job.phase).job(job.number), job.token, words)


class UnwatchedJobs:
    """The jobs of a run whose controller has ended, as its journal has them: those that are not
    known to have ended, and whose ids are known. Without a backend nobody knows more of them than
    their own results say."""

    def __init__(self, run: RunDir, journal: RunJournal, backend: RunBackend | None) -> None:
        self._run, self._journal, self._backend = run, journal, backend
        self.jobs = {
            job.phase: watched
            for job in (*journal.left, *journal.unanswered)
            if (watched := _watch(run, job)) is not None
        }

    def give_up(self, why: str) -> dict[str, Judgement] | None:
        """Give up every job, so that none starts any more; return by id the judgement of those that
        have not started. None if one starts meanwhile: then the scheduler may start the others,
        too, and they are left; one that has seen itself given up says so. Raises OSError."""
        unstarted = {}
        given_up: list[Path] = []
        for job in self._journal.left:
            directory = self._run.phase(job.phase).job(job.number)
            had_started = _has_started(directory)
            withdraw(directory, job.token, why)
            if had_started:
                continue
            if _has_started(directory):
                for withdrawn in given_up:
                    withdrawn.unlink(missing_ok=True)
                return None
            given_up.append(directory.withdrawn(job.token))
            unstarted[job.job_id] = Judgement("never_ran", why)
        return unstarted

    def expect_end(self) -> None:
        """Note how each job is just before it is ended."""
        for job in self.jobs.values():
            job.expect_end()

    def ask(self) -> list[str] | None:
        """Ask the scheduler for the state of each; return those that have not ended, None if it
        does not answer. Without a backend, each counts as ended."""
        if self._backend is None:
            return []
        ids = [job.job_id for job in self.jobs.values()]
        states = self._backend.states(ids) if ids else {}
        if not all(job_id in states for job_id in ids):
            return None
        alive = []
        for job in self.jobs.values():
            job.check_files()
            job.record_state(self._keep_own(states[job.job_id]))
            if not job.has_left_queue:
                alive.append(job.job_id)
        return alive

    def may_show_results(self) -> bool:
        """Whether results may not be visible yet of a job whose end was first seen just now."""
        may_show = False
        for job in self.jobs.values():
            if job.awaits_results:
                seen = job.directory.incomplete
                with contextlib.suppress(OSError):  # on a full disk they are not awaited
                    create_once(seen, {})
                    age_s = time.time() - seen.stat().st_mtime
                    may_show = may_show or age_s < COMPLETED_GRACE_S
        return may_show

    def _keep_own(self, state: JobState) -> JobState:
        """The state, unless the scheduler shows another job under this id."""
        is_ours = not state.name or state.name.startswith(f"clustersmoke-{self._run.run_id}-")
        return state if is_ours else JobState("unknown", "", state.reason)

    def judge(
        self, profile: Profile, journal: FencedJournal, ended: Mapping[str, Judgement]
    ) -> None:
        """Write the result of each job. `ended`: by id, the judgement of those that a command has
        ended, which holds unless they had ended by themselves. Raises OSError."""
        for name, job in self.jobs.items():
            job.check_files()
            cancelled = None if job.failed_first else ended.get(job.job_id)
            result, judgement, findings = judge_end(job, None, cancelled)
            known, directory = self._journal.jobs[name], self._run.phase(name)
            if judgement.outcome == "lost" and known.may_run:  # its controller was ending it
                judgement, findings = self._earlier_judgement(name) or judgement, []
            if ending := read_ending(directory, known):  # no other followed it
                judgement = Judgement(ending.outcome, ending.reason)
                findings = [*ending.findings]
            before = read_attempts(directory, known.number)
            journal.fence.check()
            written = write_result(
                directory, profile, result, judgement, job, findings, known.intended, {}, before
            )
            if written.error is not None:
                raise written.error
            outcome = written.judgement.outcome
            journal.write("ended", phase=name, job_id=job.job_id, outcome=outcome)

    def _earlier_judgement(self, name: str) -> Judgement | None:
        """How the run's controller judged a phase that it ended; None if that is not known."""
        result = read_json(self._run.phase(name).result) or {}
        reason = parse_text(result.get("reason")) or ""
        return Judgement("cancelled", reason) if result.get("outcome") == "cancelled" else None

    def judge_others(
        self,
        phases: Sequence[str],
        profile: Profile,
        journal: FencedJournal,
        unsubmitted: Judgement,
        unanswered: Judgement = UNANSWERED,
    ) -> None:
        """Write a result for those of these phases that have none, because nothing of them was ever
        submitted, and for those whose submission had no answer and was withdrawn. Raises
        OSError."""
        from ..diagnose import explain_lost_answer

        for name in phases:
            if name not in self._journal.jobs:
                self._judge_other(name, profile, journal, unsubmitted)
        for job in self._journal.unanswered:
            if job.phase not in self.jobs:
                script = self._run.phase(job.phase).job(job.number).batch_script
                finding = explain_lost_answer(unanswered, script)
                self._judge_other(job.phase, profile, journal, unanswered, [finding], job)

    def _judge_other(
        self,
        name: str,
        profile: Profile,
        journal: FencedJournal,
        judgement: Judgement,
        findings: Sequence[Finding] = (),
        job: JournalledJob | None = None,
    ) -> None:
        directory, submitted = self._run.phase(name), job.intended if job else None
        if directory.result.exists():
            return
        before = read_attempts(directory, job.number if job else None)
        journal.fence.check()
        written = write_result(
            directory, profile, None, judgement, None, findings, submitted, {}, before
        )
        if written.error is not None:
            raise written.error


def _has_started(directory: PhaseDir) -> bool:
    return any(map(read_claim, directory.attempts()))


def _watch(run: RunDir, job: JournalledJob) -> WatchedJob | None:
    """The watch over a job, from what its controller wrote; None if its id is not known."""
    directory = run.phase(job.phase).job(job.number)
    claim, job_id = read_claim(directory), job.job_id
    if not job_id and claim is not None and claim.token == job.token:
        job_id = claim.job_id
    if not job_id:
        return None
    spec = read_json(directory.spec) or {}
    return WatchedJob(
        job.phase,
        job_id,
        directory.newest,
        parse_int(spec.get("nodes")) or 0,
        submitted_at=0.0,
        words=("", f"token={job.token}" if job.token else f"{COMMENT_BEGINS}{run.run_id} "),
        timeout_s=parse_finite(spec.get("timeout_s")) or 0.0,
        resumes=bool(spec.get("resume")),
        submitted=job.queued,
    )
