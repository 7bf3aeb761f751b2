"""What is known of each phase of a run: told by the thread that watches, read by those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...text import sanitize_line

if TYPE_CHECKING:
    from ...jobs.job_watch import Watched
    from ...jobs.outcome import Judgement

TICK_S = 0.2
WAITING, PENDING, RUNNING, ENDING, DONE = "waiting", "pending", "running", "ending", "done"


@dataclass(frozen=True)
class Progress:
    """One change in the life of a phase, for people: what happened, in a few words."""

    phase: str
    text: str


@dataclass(frozen=True)
class PhaseState:
    """A phase as it is now.

    `state` is waiting (to be submitted), pending, running, ending (the scheduler has said so, the
    nodes' results are awaited) or done. `detail`: why a pending job waits, the nodes of a running
    one. `submitted`, `started` and `estimated_start` are Unix seconds.
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
    """The thread that watches the jobs met something it did not expect."""


def nothing() -> None:
    """Nobody looks."""


class Board:
    """All phases of a run. Any thread may call any method."""

    def __init__(self, phases: Iterable[str]) -> None:
        self._changed = threading.Condition()
        self._states = {name: PhaseState(name) for name in phases}
        self._told: dict[str, str] = {}
        self._fresh: list[Progress] = []
        self._judged: dict[str, Judgement] = {}
        self._error: BaseException | None = None

    # For the thread that watches

    def tell(self, phase: str, text: str) -> None:
        """Say what happened; the same of one phase is said once."""
        with self._changed:
            self._tell(phase, text)

    def _tell(self, phase: str, text: str) -> None:
        if text and self._told.get(phase) != text:
            self._told[phase] = text
            self._fresh.append(Progress(phase, text))
            self._changed.notify_all()

    def awaits(self, detail: str) -> None:
        """Why no phase is submitted yet; empty where nothing but its turn keeps it."""
        with self._changed:
            for name, one in self._states.items():
                if one.state == WAITING:
                    self._states[name] = replace(one, detail=detail)

    def submitted(self, phase: str, job_id: str, when: float, estimated: float | None) -> None:
        """The scheduler has taken the phase's job at this Unix time. `estimated`: when it might
        start, as far as that was known before."""
        with self._changed:
            self._states[phase] = PhaseState(
                phase, PENDING, job_id=job_id, submitted=when, estimated_start=estimated
            )
            self._tell(phase, f"submitted as job {job_id}")

    def see(self, job: Watched) -> None:
        """Take over what is known of a job that has not ended."""
        said = job.state
        with self._changed:
            one = self._states[job.phase]
            if job.running:
                nodes = sanitize_line(said.nodes) if said else ""
                started = (said.started if said else None) or one.started or time.time()
                state = RUNNING if job.ended_at is None else ENDING
                one = replace(one, state=state, detail=nodes, started=started)
                self._tell(job.phase, f"running on {nodes}" if nodes else "")
            elif said:
                reason = sanitize_line(said.reason)
                estimated = said.expected_start or one.estimated_start
                one = replace(one, detail=reason, estimated_start=estimated)
                self._tell(job.phase, f"pending: {reason}" if reason else "")
            self._states[job.phase] = one

    def finish(self, phase: str, judgement: Judgement, run_s: float | None) -> None:
        """The phase's result is known. `run_s`: how long its job ran, None where it never did."""
        took = f" after {run_s:.1f} s" if run_s is not None else ""
        with self._changed:
            self._judged[phase] = judgement
            self._states[phase] = replace(
                self._states[phase],
                state=DONE,
                detail="",
                outcome=judgement.outcome,
                run_s=run_s,
            )
            self._tell(phase, f"{judgement.outcome}{took}")
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The watching thread cannot go on: told to whoever waits, it has nobody else to tell."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # For those who wait

    def wait(
        self, phase: str, tell: Callable[[Progress], None], tick: Callable[[], None] = nothing
    ) -> None:
        """Return when the phase's result is known. Meanwhile `tell` hears of every change, and
        `tick` is called a few times a second.

        Raises WatchFailed, from its cause, where the watching thread could not go on.
        """
        while True:
            with self._changed:
                if not (self._fresh or self._error or phase in self._judged):
                    self._changed.wait(timeout=TICK_S)
                known = phase in self._judged
            for progress in self.fresh():
                tell(progress)
            if known:
                return
            self.check()
            tick()

    def fresh(self) -> list[Progress]:
        """What happened since this was asked last."""
        with self._changed:
            fresh, self._fresh = self._fresh, []
        return fresh

    def check(self) -> None:
        """Raise WatchFailed, from its cause, where the watching thread could not go on."""
        with self._changed:
            error = self._error
        if error is not None:
            raise WatchFailed(f"watching the jobs failed: {error}") from error

    def snapshot(self) -> list[PhaseState]:
        """All phases as they are now, in the order of their submission."""
        with self._changed:
            return list(self._states.values())

    @property
    def outcomes(self) -> dict[str, Judgement]:
        with self._changed:
            return dict(self._judged)
