"""The state of each phase of a run: posted by the watch thread, read by the threads that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...text import outcome_words, sanitize_line

if TYPE_CHECKING:
    from ...jobs.job_watch import WatchedJob
    from ...jobs.outcome import Judgement

TICK_S = 0.2
WAITING, PENDING, RUNNING, ENDING, DONE = "waiting", "pending", "running", "ending", "done"


@dataclass(frozen=True)
class Progress:
    """One change of a phase's state, in a few words for people."""

    phase: str
    text: str


@dataclass(frozen=True)
class PhaseState:
    """A phase as it is now.

    `state` is waiting (to be submitted), pending, running, ending (the scheduler says that the job
    has ended, but the nodes' results are missing) or done. `detail` is why a pending job waits, or
    the nodes of a running one. `submitted`, `started` and `estimated_start` are Unix seconds.
    """

    phase: str
    state: str = WAITING
    detail: str = ""
    job_id: str = ""
    submitted: float | None = None
    started: float | None = None
    estimated_start: float | None = None
    outcome: str = ""
    run_s: float | None = None


class WatchFailed(Exception):
    """The watch thread ended with an unexpected error."""


def list_nodes(names: Collection[str]) -> str:
    return f"node {sanitize_line(', '.join(sorted(names)))}" if names else "a node"


def do_nothing() -> None:
    """The tick of a caller that shows nothing."""


class Board:
    """All phases of a run. Any thread may call any method."""

    def __init__(self, phases: Iterable[str]) -> None:
        self._changed = threading.Condition()
        self._states = {name: PhaseState(name) for name in phases}
        self._last_texts: dict[str, str] = {}
        self._news: list[Progress] = []
        self._judged: dict[str, Judgement] = {}
        self._error: BaseException | None = None

    # For the watch thread

    def post(self, phase: str, text: str) -> None:
        """Post what happened; the text of a phase is not repeated."""
        with self._changed:
            self._post(phase, text)

    def _post(self, phase: str, text: str) -> None:
        if text and self._last_texts.get(phase) != text:
            self._last_texts[phase] = text
            self._news.append(Progress(phase, text))
            self._changed.notify_all()

    def add(self, phase: str) -> None:
        """Add a phase that is to be submitted."""
        with self._changed:
            self._states[phase] = PhaseState(phase)

    def set_waiting_reason(self, detail: str) -> None:
        """Set why no phase is submitted yet; empty if phases only wait for their turn."""
        with self._changed:
            for name, state in self._states.items():
                if state.state == WAITING:
                    self._states[name] = replace(state, detail=detail)

    def set_submitted(self, phase: str, job_id: str, when: float, estimated: float | None) -> None:
        """The scheduler accepted the phase's job at this Unix time. `estimated` is when the job
        might start, if preflight knows."""
        with self._changed:
            self._states[phase] = PhaseState(
                phase, PENDING, job_id=job_id, submitted=when, estimated_start=estimated
            )
            self._post(phase, f"submitted as job {job_id}")

    def update(self, job: WatchedJob) -> None:
        """Update the phase of a job that has not ended."""
        job_state = job.state
        with self._changed:
            phase = self._states[job.phase]
            if job.running:
                nodes = sanitize_line(job_state.nodes) if job_state else ""
                reported = job_state.started if job_state else None
                started = reported or phase.started or time.time()
                state = RUNNING if job.ended_at is None else ENDING
                phase = replace(phase, state=state, detail=nodes, started=started)
                text = f"running on {nodes}" if nodes else ""
                if job.failed_nodes is not None:  # before the others have written what they saw
                    text = f"{list_nodes(job.failed_nodes)} failed, the others end"
                self._post(job.phase, text)
            elif job_state:
                reason = sanitize_line(job_state.reason)
                estimated = job_state.expected_start or phase.estimated_start
                phase = replace(phase, detail=reason, estimated_start=estimated)
                self._post(job.phase, f"pending: {reason}" if reason else "")
            self._states[job.phase] = phase

    def finish(self, phase: str, judgement: Judgement, run_s: float | None) -> None:
        """Set the phase's result. `run_s` is how long its job ran, None if it never started."""
        duration = f" after {run_s:.1f} s" if run_s is not None else ""
        with self._changed:
            self._judged[phase] = judgement
            self._states[phase] = replace(
                self._states[phase],
                state=DONE,
                detail="",
                outcome=judgement.outcome,
                run_s=run_s,
            )
            self._post(phase, f"{outcome_words(judgement.outcome)}{duration}")
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The watch thread cannot continue; `wait` and `check` raise this error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # For the threads that wait

    def wait(
        self, phase: str, report: Callable[[Progress], None], tick: Callable[[], None] = do_nothing
    ) -> None:
        """Return when the phase's result is known. Meanwhile call `report` with every change, and
        `tick` a few times a second.

        Raises WatchFailed, from its cause, if the watch thread has failed.
        """
        while True:
            with self._changed:
                if not (self._news or self._error or phase in self._judged):
                    self._changed.wait(timeout=TICK_S)
                is_done = phase in self._judged
            for progress in self.take_news():
                report(progress)
            if is_done:
                return
            self.check()
            tick()

    def wait_for_submission(self) -> None:
        """Return once a phase has a job or a result, or the watch thread has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or any(s.state != WAITING for s in self._states.values())
            )

    def take_news(self, *phases: str) -> list[Progress]:
        """The changes since the last call, of these phases or of all."""
        with self._changed:
            news = [each for each in self._news if not phases or each.phase in phases]
            self._news = [each for each in self._news if each not in news]
        return news

    def check(self) -> None:
        """Raise WatchFailed, from its cause, if the watch thread has failed."""
        with self._changed:
            error = self._error
        if error is not None:
            raise WatchFailed(f"watching the jobs failed: {error}") from error

    def snapshot(self) -> list[PhaseState]:
        """All phases as they are now, in order of submission."""
        with self._changed:
            return list(self._states.values())

    @property
    def outcomes(self) -> dict[str, Judgement]:
        with self._changed:
            return dict(self._judged)
