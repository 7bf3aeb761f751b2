"""`--cluster-reap`: ends what is left of runs whose process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ..config.profile import Profile
from ..evidence.locks import MAX_SILENCE_S, ControllerFence
from ..evidence.run_directory import RunDir, read_json
from ..evidence.run_journal import FencedJournal, read_journal, require_journal
from ..evidence.run_ownership import find_run
from ..evidence.telemetry import parse_texts
from ..jobs.backend import RunBackend, SchedulerSilent, make_backend
from ..jobs.outcome import Judgement
from ..text import Problem, UsageProblems, plural, shorten
from .dead_runs import MOST_JOBS, find_blind_spot, find_controller, list_dead_runs
from .dead_runs import REAP as OPTION
from .unwatched_jobs import UnwatchedJobs, withdraw_unanswered

ALL = "all"
CONFIRM_S, POLL_S = 30.0, 0.5
WHY = f"{OPTION} ended the run, whose process had ended"


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
    runs = list(list_dead_runs(profile)) if ALL in words else _choose_runs(profile, words)
    if not runs:
        say(f"{profile.name} has no run without a process")
    return max([_reap(run, profile, backend, say) for run in runs], default=0)


def _choose_runs(profile: Profile, words: Sequence[str]) -> list[RunDir]:
    runs, problems = [], []
    for word in dict.fromkeys(words):
        run, why = find_run(profile.shared_dir, word)
        about = read_json(run.run) if run is not None else None
        if run is None or about is None or about.get("cluster") != profile.name:
            what = why or f"there is no run {word} of {profile.name} below {profile.shared_dir}"
            problems.append(Problem(what, OPTION, f"the id of a run, or `{ALL}`"))
        elif blind := find_blind_spot(about, profile):
            what = f"run {word} {blind}"
            problems.append(Problem(what, OPTION, "a run whose jobs can be seen from here"))
        elif holder := find_controller(run, read_journal(run), MAX_SILENCE_S):
            what = f"run {word} is controlled by {holder}"
            expected = "a run whose process has ended"
            problems.append(Problem(what, OPTION, expected, "end that first"))
        else:
            runs.append(run)
    if problems:
        raise UsageProblems(problems)
    return runs


def _reap(run: RunDir, profile: Profile, backend: RunBackend, say: Callable[[str], object]) -> int:
    """End a run's jobs, say so, and return the exit status."""
    if blind := find_blind_spot(read_json(run.run) or {}, profile):
        say(f"run {run.run_id} {blind}: nothing was ended")
        return 1
    try:
        ends, left = _end_run(run, profile, backend)
    except (OSError, SchedulerSilent) as error:  # also a process that has taken the run over
        say(f"run {run.run_id}: {error}")
        return 1
    if left:
        say(f"run {run.run_id}: not confirmed that {shorten(left, MOST_JOBS)} ended; ask again")
        return 1
    what = f"ended {plural(len(ends), 'job')}" if ends else "no job was left"
    say(f"run {run.run_id}: {what}")
    return 0


def _end_run(run: RunDir, profile: Profile, backend: RunBackend) -> tuple[set[str], list[str]]:
    """End a run's jobs; return those that were ended and those that may still run. Without the
    latter, the run is closed and each phase has a result. Raises OSError and SchedulerSilent."""
    fence = ControllerFence(run)
    journal = FencedJournal(run, fence)
    try:
        known = require_journal(run)
        withdraw_unanswered(run, known)
        jobs = UnwatchedJobs(run, known, backend)
        ended, left = _end_jobs(run, jobs, backend, fence, journal)
        if left:
            return ended, left
        cancelled = Judgement("cancelled", WHY)
        jobs.judge(profile, journal, dict.fromkeys(ended, cancelled))
        phases = parse_texts((read_json(run.run) or {}).get("phases_chosen"))
        jobs.judge_others(phases, profile, journal, cancelled, cancelled)
        journal.write("closed", reaped=True)
    finally:
        journal.close()
    return ended, []


def _end_jobs(
    run: RunDir,
    jobs: UnwatchedJobs,
    backend: RunBackend,
    fence: ControllerFence,
    journal: FencedJournal,
) -> tuple[set[str], list[str]]:
    """Cancel what is left of a run until nothing is, or a while has passed; return the jobs that
    the scheduler was asked to end, of which it may know one no more, and those that are left."""
    deadline, ended, asked = time.monotonic() + CONFIRM_S, set[str](), set[str]()
    while left := _find_left(run, jobs, backend):
        jobs.expect_end()
        if new := [job for job in left if job not in ended]:
            fence.check()
            asked |= {*new}
            if backend.cancel(new):
                ended |= {*new}
                journal.write("cancelled", jobs=new, reaped=True)
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return asked, left


def _find_left(run: RunDir, jobs: UnwatchedJobs, backend: RunBackend) -> list[str]:
    """The jobs that the scheduler lists of the run, and those of the journal that have not ended.
    Raises SchedulerSilent."""
    listed = backend.jobs_of_runs([run])[run.run_id]
    if (alive := jobs.ask()) is None:
        raise SchedulerSilent("the scheduler does not say how its jobs are")
    return [*dict.fromkeys([*listed, *alive])]
