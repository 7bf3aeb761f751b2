"""Runs whose controller has ended: the jobs that they left, and their end (`--cluster-reap`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..config.profile import Profile
from ..evidence.locks import MAX_SILENCE_S, ControllerFence, find_holder
from ..evidence.run_directory import RUN_ID, RunDir, read_json
from ..evidence.run_journal import FencedJournal, read_journal
from ..jobs.backend import RunBackend, SchedulerSilent, make_backend
from ..text import Problem, UsageProblems, plural, shorten

OPTION, ALL = "--cluster-reap", "all"
CONFIRM_S, POLL_S = 30.0, 0.5
MOST_JOBS = 4  # named in a line


def list_dead_runs(profile: Profile) -> Iterator[RunDir]:
    """The runs of this cluster that were not closed and that no process controls, oldest first."""
    try:
        names = sorted(path.name for path in profile.shared_dir.iterdir())
    except OSError:
        return
    for run in (RunDir(profile.shared_dir / name) for name in names if RUN_ID.fullmatch(name)):
        about = read_json(run.run) or {}
        if about.get("cluster") != profile.name or read_journal(run).closed:
            continue
        if not find_holder(run, MAX_SILENCE_S):
            yield run


def describe_dead_runs(profile: Profile, environ: Mapping[str, str]) -> dict[str, str]:
    """By run id: a line on each dead run that can be attached, with what to do about it. Other dead
    runs have no jobs left."""
    lines = {}
    for run in list_dead_runs(profile):
        jobs = _list_jobs(profile, environ, run)
        todo = f"--cluster-attach {run.run_id} judges it, {OPTION} {run.run_id} ends it"
        if jobs:
            listed = f"{plural(len(jobs), 'job')} left ({shorten(jobs, MOST_JOBS)})"
            lines[run.run_id] = f"run {run.run_id} has {listed}, and no process: {todo}"
        elif read_journal(run).detached:
            lines[run.run_id] = f"run {run.run_id} is detached, and its jobs have ended: {todo}"
    return lines


def reap(
    profile: Profile, environ: Mapping[str, str], words: Sequence[str], say: Callable[[str], object]
) -> int:
    """End what is left of these runs; return 0 once that is confirmed, otherwise 1. Raises
    UsageProblems."""
    backend = make_backend(profile, environ)
    if not isinstance(backend, RunBackend):
        what = f"jobs of {profile.name} cannot be ended by another process"
        expected = "a cluster with Slurm, or this machine"
        raise UsageProblems([Problem(what, OPTION, expected, "log in on the hosts and end them")])
    runs = _choose_runs(profile, words)
    if not runs:
        say(f"no run of {profile.name} has ended without its process")
    return max([_reap_run(run, backend, say) for run in runs], default=0)


def _choose_runs(profile: Profile, words: Sequence[str]) -> list[RunDir]:
    if ALL in words:
        return list(list_dead_runs(profile))
    runs = [RunDir(profile.shared_dir / word) for word in dict.fromkeys(words)]
    problems = []
    for run in runs:
        about = read_json(run.run) if RUN_ID.fullmatch(run.run_id) else None
        if about is None or about.get("cluster") != profile.name:
            what = f"there is no run {run.run_id} of {profile.name} below {profile.shared_dir}"
            problems.append(Problem(what, OPTION, f"the id of a run, or `{ALL}`"))
        elif holder := find_holder(run, MAX_SILENCE_S):
            what = f"run {run.run_id} is controlled by {holder}"
            problems.append(
                Problem(what, OPTION, "a run whose process has ended", "end that first")
            )
    if problems:
        raise UsageProblems(problems)
    return runs


def _reap_run(run: RunDir, backend: RunBackend, say: Callable[[str], object]) -> int:
    fence = ControllerFence(run)
    journal = FencedJournal(run, fence)
    deadline, ended = time.monotonic() + CONFIRM_S, set[str]()
    left: list[str] = []
    while time.monotonic() < deadline:
        try:
            left = backend.jobs_of_run(run)
        except SchedulerSilent as silence:
            say(f"run {run.run_id}: {silence}")
            return 1
        if not left:
            break
        if new := [job for job in left if job not in ended]:
            fence.check()
            if backend.cancel(new):
                ended |= {*new}
                journal.write("cancelled", jobs=new, reaped=True)
        time.sleep(POLL_S)
    if left:
        say(f"run {run.run_id}: not confirmed that {shorten(left, MOST_JOBS)} ended; ask again")
        return 1
    journal.write("closed", reaped=True)
    journal.close()
    ends = f"ended {plural(len(ended), 'job')}" if ended else "no job was left"
    say(f"run {run.run_id}: {ends}")
    return 0


def _list_jobs(profile: Profile, environ: Mapping[str, str], run: RunDir) -> list[str]:
    """The run's jobs; empty as well if that is not known."""
    journal = read_journal(run)
    backend = make_backend(profile, environ)
    if not (journal.left or journal.unanswered) or not isinstance(backend, RunBackend):
        return []
    try:
        return backend.jobs_of_run(run)
    except SchedulerSilent:
        return []
