"""Which jobs each phase of a run has had so far, and whether it gets another one.

A phase is tried again if the cluster took its job away: on other nodes after one of them failed,
on any after a preemption. Only phases whose first job this run submitted with `limits.retries` have
a directory for each job; the others run once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..config.hostlist import expand_hostlist
from ..config.phase import Phase
from ..config.profile import Limits
from ..evidence.finding import Finding
from ..evidence.phase_attempts import (
    NODE_FAILED,
    RETRIED,
    PhaseAttempt,
    read_attempt,
    read_attempts,
)
from ..evidence.run_directory import ISOLATION, RERUN, PhaseDir, RunDir
from ..evidence.run_journal import JournalledJob, RunJournal

# Findings with the scheduler's names of nodes.
BY_SCHEDULER = ("node-down", "prolog-failed", "slurmstepd-died")
NODE = re.compile(r"[A-Za-z0-9_][\w.-]{0,254}", re.ASCII)  # what may stand in an sbatch option


class PhaseLedger:
    """`avoids`: whether the backend can keep a job off nodes; `avoided`: those that no job of the
    run must get."""

    def __init__(
        self, run: RunDir, limits: Limits, avoids: bool, avoided: Iterable[str] = ()
    ) -> None:
        self._run, self._limits, self._avoids = run, limits, avoids
        self._avoided = tuple(filter(NODE.fullmatch, avoided))
        self._ended: dict[str, list[PhaseAttempt]] = {}

    def restore(self, journal: RunJournal, names: Iterable[str]) -> None:
        """Take up the attempts that earlier controllers saw end."""
        for name in names:
            job = journal.jobs.get(name)
            if job is not None and not job.number:
                continue
            found = read_attempts(self._run.phase(name), job.number if job else None)
            ending = None if job is None else read_ending(self._run.phase(name), job)
            self._ended[name] = [*found, *([ending] if ending else [])]

    def ended(self, name: str) -> Sequence[PhaseAttempt]:
        """The phase's jobs that ended and that another follows, or is to follow."""
        return self._ended.get(name, [])

    def has_ended(self, job: JournalledJob) -> bool:
        """Whether this job of its phase has, and another is to follow."""
        return any(attempt.number == job.number for attempt in self.ended(job.phase))

    def directory(self, phase: Phase) -> PhaseDir:
        """Where the phase's next job writes."""
        ended, directory = self.ended(phase.name), self._run.phase(phase.name)
        is_rerun = bool(RERUN.fullmatch(phase.name) or ISOLATION.fullmatch(phase.name))
        is_single = not self._limits.retries or phase.staged or is_rerun
        # A controller before may have had other limits, and its job may have a directory.
        if not ended and is_single and not directory.jobs():
            return directory
        return directory.job(max((attempt.number for attempt in ended), default=0) + 1)

    def avoided(self, name: str) -> tuple[str, ...]:
        """The nodes that the phase's next job must not get, by the scheduler's names."""
        failed = [node for attempt in self.ended(name) for node in attempt.failed]
        return tuple(dict.fromkeys([*self._avoided, *failed]))

    def can_retry(self, attempt: PhaseAttempt) -> bool:
        """Whether the phase is tried again after this job of it."""
        if not 0 < attempt.number <= self._limits.retries or attempt.outcome not in RETRIED:
            return False
        return attempt.outcome != NODE_FAILED or (self._avoids and bool(attempt.failed))

    def add(self, name: str, attempt: PhaseAttempt) -> None:
        """Add a job that ended, and that another is to follow. Raises OSError, and then there must
        be no other: nobody would know of this one."""
        attempt.write(self._run.phase(name))
        self._ended.setdefault(name, []).append(attempt)

    def drop_last(self, name: str) -> PhaseAttempt:
        """Take the phase's last job out: no other follows it."""
        return self._ended[name].pop()


def read_ending(phase: PhaseDir, job: JournalledJob) -> PhaseAttempt | None:
    """How the phase's last job ended, if another is to follow it: by its record or, if that cannot
    be read, by the journal."""
    if not job.number:
        return None
    if ending := read_attempt(phase.job(job.number)):
        return ending
    if not job.outcome:
        return None
    reason = f"only the journal says how it ended: {job.outcome}"
    return PhaseAttempt(job.number, job.outcome, reason, job.job_id)


def find_failed_nodes(allocated: str, nodes: int, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Those that failed of the `nodes` nodes of a job, by what the scheduler said; all of them if
    it named none. `allocated` may lack some."""
    found = [host for each in findings if each.id in BY_SCHEDULER for host in each.hosts]
    named, held = (
        tuple(filter(NODE.fullmatch, names)) for names in (found, expand_hostlist(allocated))
    )
    if len(held) < nodes:
        return tuple(dict.fromkeys(named)) or held
    return tuple(node for node in held if node in named) or held
