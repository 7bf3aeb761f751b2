"""The jobs that earlier controllers of a run submitted, as a later one takes them up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..config.phase import Phase
from ..evidence.run_directory import RunDir, read_json
from ..evidence.run_journal import JournalledJob, RunJournal
from ..evidence.telemetry import parse_int
from ..jobs.backend import Submission
from .cancellation import Leftover
from .phase_ledger import PhaseLedger

ARRAY_TASK = re.compile(r"(\d+)_\d+", re.ASCII)  # the names of other backends' jobs may have a `_`


@dataclass(frozen=True)
class EarlierJobs:
    """By phase: `ended` has a result, and its job does not run; of `retried` the last job ended,
    and another is to follow; `submitted` has a job; the jobs of each group of `unanswered` were
    submitted together, and nobody knows whether the scheduler has them."""

    ended: tuple[str, ...]
    retried: tuple[tuple[Submission, JournalledJob], ...]
    submitted: tuple[tuple[Submission, JournalledJob], ...]
    unanswered: tuple[tuple[Submission, ...], ...]


def list_left(journal: RunJournal) -> Leftover:
    """What controllers before left, of which this one has not taken up anything."""
    unanswered = tuple(job.phase for job in journal.unanswered)
    return Leftover(tuple(job.job_id for job in journal.left), unanswered)


def restore_test(run: RunDir, name: str, phase: Phase) -> Phase:
    """A test of --cluster-isolate that an earlier controller submitted, of this phase."""
    spec = read_json(run.phase(name).spec) or {}
    nodes = replace(phase.nodes, value=parse_int(spec.get("nodes")) or phase.nodes.value)
    return replace(phase, name=name, nodes=nodes, trace=None)


def sort_jobs(
    journal: RunJournal, phases: Mapping[str, Phase], run: RunDir, ledger: PhaseLedger
) -> EarlierJobs:
    """Sort the journal's jobs by what is known of them."""
    together: dict[str, list[JournalledJob]] = {}
    for job in journal.jobs.values():
        together.setdefault(job.token, []).append(job)
    retried, submitted, unanswered = [], [], []
    for jobs in map(_complete_ids, together.values()):
        made = [
            Submission(
                phases[job.phase],
                run.phase(job.phase).job(job.number),
                job.token,
                job.index,
                at_once=job.at_once,
            )
            for job in jobs
        ]
        left = [pair for pair in zip(made, jobs, strict=True) if not pair[1].has_ended]
        over = [pair for pair in left if ledger.has_ended(pair[1])]
        retried += over
        left = [pair for pair in left if pair not in over]
        submitted += [pair for pair in left if pair[1].job_id]
        if lost := [job for job, known in left if not known.job_id]:
            unanswered.append(tuple(lost))
    ended = tuple(job.phase for job in journal.jobs.values() if job.has_ended)
    return EarlierJobs(ended, tuple(retried), tuple(submitted), tuple(unanswered))


def _complete_ids(jobs: list[JournalledJob]) -> list[JournalledJob]:
    """The tasks of an array, with the ids of those whose line the journal does not have. It did not
    always have their index."""
    if len(jobs) > 1 and jobs[0].index is None:
        jobs = [replace(job, index=position) for position, job in enumerate(jobs)]
    task = next(filter(None, (ARRAY_TASK.fullmatch(job.job_id) for job in jobs)), None)
    if task is None:
        return jobs
    return [replace(job, job_id=job.job_id or f"{task[1]}_{job.index}") for job in jobs]
