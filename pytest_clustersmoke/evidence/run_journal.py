"""What the journal of a run says: which jobs were submitted, and which of them have ended."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..text import plural
from .locks import HEARTBEAT_S, ControllerFence, ControllerLock, Unclear, send_heartbeat
from .run_counts import CriterionRecord
from .run_directory import RunDir, read_json
from .telemetry import (
    Events,
    EventWriter,
    open_regular,
    parse_event,
    parse_finite,
    parse_int,
    parse_text,
    read_events,
)
from .whole_files import is_full

# Without an `intent` no job is submitted; without `detached`, the next run would judge this one.
KEPT = ("intent", "detached")
# By these another controller acts. NFS shows its host, and a disk keeps, only what was synced;
# those who write `intent` and `submitted`, for many jobs at once, do that themselves.
SYNCED = ("attached", "closed", "detached", "held", "refused", "retry")


class FencedJournal(EventWriter):
    """The journal, as the run's last controller writes it. Raises Superseded if that is another."""

    def __init__(self, run: RunDir, fence: ControllerFence) -> None:
        super().__init__(run.journal)
        self._run, self.fence = run, fence
        self._judged: dict[tuple[str, str], str] = {}
        self._beaten = time.monotonic()
        self._writing, self._is_closed = threading.Lock(), False
        self.controller: ControllerLock | None = None  # of this process, to be renewed
        self.lost = 0  # lines for which the disk had no room

    def write(self, event: str, **fields: Any) -> None:
        """Write a line; after `closed`, none. On a full disk it is lost; but for those that others
        act on, `KEPT`, that raises OSError."""
        self.fence.check()
        try:
            with self._writing:  # by any thread; none that is late says more of a closed run
                if not self._is_closed:
                    super().write(event, **fields)
                    self._is_closed = event == "closed"
            if event in SYNCED:
                self.sync()
        except OSError as error:
            if event in KEPT or not is_full(error):
                raise
            self.lost += 1

    def sync(self) -> None:
        """Have the lines on the disk, where other hosts see them. Raises OSError if that is full;
        after any other error they are in this host's cache, as without this call."""
        try:
            super().sync()
        except OSError as error:
            if is_full(error):
                raise

    def describe_lost(self) -> list[str]:
        """A line on what could not be written, if something was."""
        words = f"could not be written: the disk of {self._run.root} is full"
        return [f"{plural(self.lost, 'line')} of the journal {words}"] if self.lost else []

    def beat(self) -> None:
        """Show other hosts, every few seconds, that the controller is alive. Raises Superseded, but
        not while that is unclear: nothing is done yet that another controller would mind."""
        with contextlib.suppress(Unclear):
            self.fence.check()
        if time.monotonic() - self._beaten >= HEARTBEAT_S:
            self._beaten = time.monotonic()
            if self.controller is not None:
                self.controller.renew()
            send_heartbeat(self._run)

    def record_criterion(self, phase: str, criterion: str, result: CriterionRecord) -> None:
        """Write the result of a criterion, in case this process is killed before its report."""
        with contextlib.suppress(OSError):
            self.beat()
        if self._judged.get((phase, criterion)) != result.result:
            self._judged[phase, criterion] = result.result
            with contextlib.suppress(OSError):  # a full disk must not fail a criterion
                values = result.model_dump(exclude_unset=True)
                self.write("judged", phase=phase, criterion=criterion, **values)

    def record_failed_test(self, test: str) -> None:
        """Write the failure of a test that belongs to no phase."""
        with contextlib.suppress(OSError):
            self.write("failed", test=test)


# Has the last line that says who controls the run: after `closed` comes nothing.
TAIL_BYTES = 4096
# A run whose controller was killed never closes its journal; after a month it counts as over.
ABANDONED_S = 30 * 24 * 3600


@dataclass(frozen=True)
class JournalledJob:
    """A phase's last submission: its token, when it was intended (Unix seconds), and its job's id,
    empty if the journal ends before the scheduler answered. `number` is the job's among those of
    the phase, 0 if that is not retried; `outcome` is how it ended if another is to follow it.
    `has_ended`: the job has; `may_run`: it is not known to have, although its phase has a result,
    since the run ended before the scheduler confirmed the job's end. `queued`: when this start of
    it was submitted, by the scheduler's clock, as a controller first saw it; `index`: of a task of
    an array, of which `at_once` may run at a time."""

    phase: str
    token: str
    intended: float
    job_id: str = ""
    has_ended: bool = False
    number: int = 0
    outcome: str = ""
    may_run: bool = False
    queued: float | None = None
    index: int | None = None
    at_once: int | None = None


@dataclass(frozen=True)
class RunJournal:
    """The jobs by phase, also of reruns, in the order of submission. `detached`: the controller
    left them to the scheduler; `closed`: it ended in order."""

    events: Events
    jobs: Mapping[str, JournalledJob] = field(default_factory=dict)
    detached: bool = False
    closed: bool = False

    @property
    def left(self) -> list[JournalledJob]:
        """The jobs that were submitted and are not known to have ended."""
        return [job for job in self.jobs.values() if job.job_id and not job.has_ended]

    @property
    def unanswered(self) -> list[JournalledJob]:
        """The jobs whose ids are not known: they may exist or not."""
        return [job for job in self.jobs.values() if not job.job_id and not job.has_ended]


def read_journal(run: RunDir) -> RunJournal:
    """Read the journal, and see which phases have a result, which comes before its line there."""
    return parse_journal(run, read_events(run.journal))


def require_journal(run: RunDir) -> RunJournal:
    """The journal of a run that is to be taken up or ended. Raises OSError if it cannot be read:
    an empty one would say that nothing was submitted. What is no file is none of ours."""
    events = read_events(run.journal)
    if events.error is not None and events.error.errno not in (errno.ENOENT, errno.EINVAL):
        raise events.error
    return parse_journal(run, events)


def parse_journal(run: RunDir, events: Events) -> RunJournal:
    """The jobs that the events of a journal name."""
    jobs: dict[str, JournalledJob] = {}
    for event in events.records:
        phase = parse_text(event.get("phase")) or ""
        before = jobs.get(phase)
        if event["event"] == "intent":
            jobs.pop(phase, None)
            token = parse_text(event.get("token")) or ""
            number = parse_int(event.get("attempt")) or 0
            index, at_once = parse_int(event.get("index")), parse_int(event.get("at_once"))
            jobs[phase] = JournalledJob(
                phase, token, float(event["time"]), number=number, index=index, at_once=at_once
            )
        elif event["event"] == "submitted" and before is not None:
            jobs[phase] = replace(before, job_id=parse_text(event.get("job_id")) or "")
        elif event["event"] == "queued" and before is not None:
            jobs[phase] = replace(before, queued=parse_finite(event.get("at")))
        elif event["event"] == "retry" and before is not None:
            jobs[phase] = replace(before, outcome=parse_text(event.get("outcome")) or "lost")
        elif event["event"] == "refused" and before is not None and not before.has_ended:
            del jobs[phase]
        elif event["event"] == "held":  # until the phase that it runs after has another job
            jobs.pop(phase, None)
        elif event["event"] == "unconfirmed" and before is not None:
            jobs[phase] = replace(before, may_run=True)
        elif event["event"] == "confirmed" and before is not None:
            is_last = before.job_id == event.get("job_id")  # of the phase, which may run again
            jobs[phase] = replace(before, may_run=before.may_run and not is_last)
        elif event["event"] == "ended" and before is not None:
            is_left = event.get("confirmed") is False
            jobs[phase] = replace(before, has_ended=not is_left, may_run=is_left)
    for phase, job in jobs.items():
        if not job.may_run:  # without a result, for which there was no room, it is judged again
            jobs[phase] = replace(job, has_ended=_has_result(run, job))
    return RunJournal(events, jobs, *_find_end(events.records))


def _has_result(run: RunDir, job: JournalledJob) -> bool:
    """Whether the phase has the result of this job: its ranks can write such a file, too. Raises
    OSError if there can be no file of that name."""
    path = run.phase(job.phase).result
    if not (path.exists() and job.job_id):
        return path.exists()
    # A job that was given up may have none.
    return (read_json(path) or {}).get("job_id") in (job.job_id, "")


def is_closed(run: RunDir) -> bool:
    """Whether the last controller of a run ended in order. Reads the end of the journal only: there
    may be many runs."""
    try:
        with open_regular(run.journal) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
            lines = stream.read(TAIL_BYTES).splitlines()
    except OSError:
        return False
    return _find_end([event for line in lines if (event := parse_event(line))])[1]


def _find_end(records: Sequence[Mapping[str, Any]]) -> tuple[bool, bool]:
    """Whether the last controller left its jobs to the scheduler, and whether it ended in order."""
    names: Iterable[str] = (record["event"] for record in reversed(records))
    last = next((name for name in names if name in ("detached", "attached", "closed")), "")
    return last == "detached", last == "closed"
