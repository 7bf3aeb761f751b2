"""The phases of a run that wait to be submitted, and whose turn it is."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Limits
from ..jobs.backend import ArrayBackend, Backend, Refused
from ..jobs.batch_script import nameless_script
from ..jobs.job_watch import WatchedJob
from ..jobs.outcome import Judgement

# Between two submissions to a scheduler that cannot accept jobs now.
FIRST_RETRY_S, MOST_RETRY_S = 1.0, 15.0
LIMITED = ("account", "partition", "qos")  # options of sbatch
# Fewer phases that differ in names and arguments only are a job each.
LEAST_ARRAY = 4


def count_started(watched: Mapping[str, WatchedJob]) -> int:
    """How many jobs run, or may start without a word of ours: not those that wait for another, but
    of an array as many tasks as may run at a time, since Slurm starts one whenever one ends."""
    arrays: dict[str, list[WatchedJob]] = defaultdict(list)
    alone = 0
    for job in [job for job in watched.values() if job.after not in watched]:
        if job.at_once is None:
            alone += not job.waits_for_turn
        else:
            arrays[job.token].append(job)
    return alone + sum(map(_count_tasks, arrays.values()))


def _count_tasks(tasks: Sequence[WatchedJob]) -> int:
    """Of one array. Somebody may have had Slurm run more of them at a time."""
    may_run = min(tasks[0].at_once or 1, len(tasks))
    return max(may_run, sum(task.running for task in tasks))


class Lanes:
    """The order in which a scheduler runs so many jobs at a time, once nobody watches them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: list[str] = []

    def find_behind(self, tasks: int) -> str:
        """The job that must end before the next one may start, or the jobs, separated by colons,
        before an array of so many tasks may, which needs every lane; empty if there is room."""
        if tasks > 1:
            return ":".join(dict.fromkeys(self._jobs[-self._count :]))
        return self._jobs[-self._count] if len(self._jobs) >= self._count else ""

    def add(self, job_ids: Sequence[str]) -> None:
        """Add jobs that were submitted. An array holds every lane until its last task has ended."""
        if len(job_ids) > 1:
            self._jobs += [job_ids[0].partition("_")[0]] * self._count
        else:
            self._jobs += job_ids


@dataclass
class _MetLimit:
    """A limit on this user's submitted jobs: since when it holds phases back, since when the run
    has no job that may count towards it, and when to try again. Monotonic seconds."""

    since: float
    patient_since: float
    retry_at: float = 0.0


def _limited(phase: Phase) -> tuple[str, ...]:
    """What limits on submitted jobs depend on: one holds back those for which it is the same."""
    return tuple(str(phase.slurm[key].value) if key in phase.slurm else "" for key in LIMITED)


def _pause_s(waited_s: float) -> float:
    return min(MOST_RETRY_S, max(FIRST_RETRY_S, waited_s / 4))


class PhaseQueue:
    """`phases` are those of the run, by name; reruns join them later. Without `has_cap` the
    scheduler keeps the limit on jobs."""

    def __init__(
        self, phases: Mapping[str, Phase], backend: Backend, limits: Limits, has_cap: bool = True
    ) -> None:
        self._phases, self._backend, self._limits = phases, backend, limits
        self._has_cap = has_cap
        # A phase that is tried again has a directory and a job of its own each time.
        self._makes_arrays = isinstance(backend, ArrayBackend) and not limits.retries
        self._shapes: dict[str, str] = {}
        # First, while an array can have all the room: nothing widens it later.
        self._alike = Counter(filter(None, map(self._shape, phases.values())))
        self.waiting = sorted(phases.values(), key=lambda phase: not self._may_share(phase))
        self._refused_since: float | None = None
        self._retry_at = 0.0
        self._met: dict[tuple[str, ...], _MetLimit] = {}

    def drop(self, names: Container[str]) -> None:
        """Take the phases of these names out; they need no submission."""
        self.waiting = [phase for phase in self.waiting if phase.name not in names]

    def put_first(self, phases: Iterable[Phase]) -> None:
        """Put phases before those that wait, to be submitted again."""
        self.waiting[:0] = phases

    def take(
        self, watched: Mapping[str, WatchedJob], outcomes: Mapping[str, Judgement], unknown: int
    ) -> list[Phase]:
        """Take the phases that may be submitted now, together; empty if none may. `unknown`: how
        many jobs may be in the scheduler's queue besides those that are watched."""
        self._keep_limits(bool(watched))
        if time.monotonic() < self._retry_at:
            return []
        phase = self._next_phase(watched, outcomes, unknown)
        if phase is None:
            return []
        phases = self._with_siblings(phase, watched, unknown)
        if len(phases) == 1:
            self.waiting.remove(phase)
        else:
            self.drop({phase.name for phase in phases})
        return phases

    def put_back(self, phases: Sequence[Phase], refusal: Refused, has_jobs: bool = False) -> str:
        """Put back phases that the scheduler may accept later, or one by one; return a message for
        the user, empty if they are given up. `has_jobs`: the run has jobs that will end."""
        if refusal.for_now:
            return self._put_off(phases, str(refusal))
        # Nobody watches the jobs of a run that detaches.
        if refusal.at_limit and len(phases) == 1 and self._has_cap:
            return self._wait_at_limit(phases[0], str(refusal), has_jobs)
        self.note_answer()
        if len(phases) == 1:
            return ""
        # Arrays may be disabled, or this one exceeds a limit on submitted jobs.
        self._makes_arrays = False
        self.waiting[:0] = phases
        return f"it refuses a job array ({refusal}); each phase is submitted by itself"

    def _put_off(self, phases: Sequence[Phase], why: str) -> str:
        now, patience_s = time.monotonic(), self._limits.scheduler_patience_s
        self._refused_since = self._refused_since or now
        waited_s = now - self._refused_since
        if waited_s >= patience_s:
            return ""
        self.waiting[:0] = phases
        self._retry_at = now + _pause_s(waited_s)
        return f"it cannot accept jobs now ({why}); trying again for up to {patience_s:g} s"

    def _wait_at_limit(self, phase: Phase, why: str, has_jobs: bool) -> str:
        """Try the phase again, while others are submitted that no such limit holds back."""
        self.note_answer()
        now, patience_s = time.monotonic(), self._limits.scheduler_patience_s
        met = self._met.setdefault(_limited(phase), _MetLimit(now, now))
        until = f"for up to {patience_s:g} s"
        if has_jobs:
            met.patient_since = now
            until = f"until jobs of this run have ended, and then {until}"
        if now - met.patient_since >= patience_s:
            return ""
        self.waiting.insert(0, phase)
        met.retry_at = now + _pause_s(now - met.since)
        return f"it accepts no more jobs of this user for now ({why}); trying again {until}"

    def _keep_limits(self, has_jobs: bool) -> None:
        """Forget the limits that hold back no phase any more; the jobs of the run, while it has
        any, may count towards the others."""
        held = {_limited(phase) for phase in self.waiting} if self._met else set()
        self._met = {what: met for what, met in self._met.items() if what in held}
        for met in self._met.values() if has_jobs else ():
            met.patient_since = time.monotonic()

    def note_answer(self) -> None:
        """Note that the scheduler accepts jobs, or refuses one for good: it answers."""
        self._refused_since = None

    def note_accepted(self, phases: Iterable[Phase]) -> None:
        """Note that the scheduler accepted these phases."""
        self.note_answer()
        for phase in phases:
            self._met.pop(_limited(phase), None)

    def _next_phase(
        self, watched: Mapping[str, WatchedJob], outcomes: Mapping[str, Judgement], unknown: int
    ) -> Phase | None:
        """The first phase that may be submitted now. One whose turn it is waits for room, and those
        behind it wait with it; but a job that waits in the queue for another needs no room."""
        has_turn = True
        for phase in self.waiting:
            before = phase.after.value if phase.after.value in self._phases else ""
            met = self._met.get(_limited(phase))
            if met is not None and time.monotonic() < met.retry_at:
                continue
            if before in watched and self._chains(phase):
                if watched[before].has_left_queue:
                    continue
                return phase
            if before and before not in outcomes:
                continue
            if before and outcomes[before].outcome != "passed":
                return phase
            if has_turn and self._has_room(phase, watched, unknown):
                return phase
            has_turn = False
        return None

    def _chains(self, phase: Phase) -> bool:
        """Whether its job waits in the scheduler's queue for another's. The points of a sweep wait
        here, for room, as long as somebody watches."""
        return self._backend.chains and (not self._has_cap or len(self._list_points(phase)) == 1)

    def _has_room(self, phase: Phase, watched: Mapping[str, WatchedJob], unknown: int) -> bool:
        """Whether another job may start: local jobs share the cores or GPUs of this machine. The
        points of a sweep wait for the room of as many as can run at a time, which nothing widens
        later."""
        needed = min(len(self._list_points(phase)), self._limits.max_jobs)
        if self._has_cap and count_started(watched) + unknown + needed > self._limits.max_jobs:
            return False
        capacity = self._backend.ranks_at_once
        if capacity is None or not watched:
            return True
        busy = sum(self._phases[name].world_size for name in watched)
        return busy + phase.world_size <= capacity

    def _with_siblings(
        self, phase: Phase, watched: Mapping[str, WatchedJob], unknown: int
    ) -> list[Phase]:
        """The phases to be submitted with this one, as one array: the other points of its sweep, or
        those that are alike, if as many can run at a time as if each were a job of its own."""
        if len(points := self._list_points(phase)) > 1:
            return points
        if not self._may_share(phase):
            return [phase]
        room = self._limits.max_jobs - count_started(watched) - unknown
        if room < min(LEAST_ARRAY, self._limits.max_jobs):
            return [phase]
        alike = self._find_alike(phase)
        if len(alike) < LEAST_ARRAY or room < min(len(alike), self._limits.max_jobs):
            return [phase]
        return alike

    def _list_points(self, phase: Phase) -> list[Phase]:
        """The waiting points of the phase's sweep that are submitted with it; else it alone."""
        if not (phase.base and self._makes_arrays):
            return [phase]
        return [other for other in self.waiting if other.base == phase.base]

    def _may_share(self, phase: Phase) -> bool:
        """Whether enough phases of the run for an array are like this one."""
        return self._alike[self._shape(phase)] >= LEAST_ARRAY

    def _find_alike(self, phase: Phase) -> list[Phase]:
        """The waiting phases that can be tasks of one array with this one."""
        shape = self._shape(phase)
        return [other for other in self.waiting if self._shape(other) == shape] if shape else []

    def _shape(self, phase: Phase) -> str:
        """What phases have in common whose jobs differ in their names and arguments only; empty if
        the phase needs a job of its own."""
        own = phase.base or phase.staged or phase.after.value or phase.resume.value
        if own or phase.nodes.value > 1 or not self._makes_arrays:
            return ""
        if phase.name not in self._shapes:
            self._shapes[phase.name] = nameless_script(phase, self._backend)
        return self._shapes[phase.name]
