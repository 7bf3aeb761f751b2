"""Runs whose controller has ended: the jobs that they left, and their reports once none is left."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.cluster_file import load_cluster_file
from ..config.profile import Profile
from ..evidence.job_results import read_claim, read_node_result
from ..evidence.locks import MAX_SILENCE_S, ControllerFence, find_holder, seize_run
from ..evidence.run_directory import RunDir, create_once, is_of_phases, read_json
from ..evidence.run_journal import (
    ABANDONED_S,
    FencedJournal,
    JournalledJob,
    RunJournal,
    is_closed,
    read_journal,
    require_journal,
)
from ..evidence.run_ownership import find_stranger, list_runs
from ..evidence.telemetry import parse_finite, parse_int, parse_text, parse_texts
from ..jobs.backend import RunBackend, SchedulerSilent, make_backend
from ..jobs.outcome import Judgement
from ..report.recovery import recover
from ..text import UsageProblems, format_here, plural, shorten
from .cancellation import Leftover

REAP, ATTACH = "--cluster-reap", "--cluster-attach"
MOST_JOBS = 4  # named in a line
START_S = 660.0  # what a job may take beside its `timeout_s`: its `setup` may take ten minutes
# While the scheduler is silent, a job that has not started so long after the last sign of life of
# the run's process is given up: that long, since an outage may last minutes only.
GIVEN_UP_S = 7 * 24 * 3600.0
# So long must it have been silent by then: one question without an answer says little.
SILENCE_S = 1800.0
NOT_STARTED = (
    "the job had not started a week after the run's process ended, and was given up, since the "
    "scheduler does not answer"
)


def list_dead_runs(profile: Profile) -> Iterator[RunDir]:
    """This user's runs of this cluster that were not closed and that no process controls, oldest
    first."""
    for run in list_runs(profile.shared_dir):
        if is_closed(run) or (read_json(run.run) or {}).get("cluster") != profile.name:
            continue
        if not find_controller(run, read_journal(run), MAX_SILENCE_S):
            yield run


def find_controller(run: RunDir, journal: RunJournal, silence_s: float) -> str:
    """Who controls a run, as find_holder says; a run that was left in order needs no silence."""
    if journal.detached or journal.closed:
        return find_holder(run, 0.0)
    return find_holder(run, silence_s)


def find_blind_spot(about: Mapping[str, Any], profile: Profile) -> str:
    """Why this process cannot see the jobs of a run, as `runs on login2 itself`; empty if it
    can."""
    if about.get("here"):
        return "ran as steps of an allocation, which only the process that started it can watch"
    if profile.backend == "ssh":
        return "runs on hosts reached over ssh, which only the process that began it can watch"
    if profile.backend == "local" and about.get("host") != socket.gethostname():
        return f"runs on {about.get('host')} itself"
    return ""


def report_dead_runs(
    report_dir: Path, environ: Mapping[str, str], profile: Profile | None = None
) -> Iterator[str]:
    """Report the dead runs of this directory of which nothing runs any more. Yields a line on each,
    and first on those of `profile` that can be attached, with what to do about them."""
    schedulers = Schedulers(environ)
    if profile is not None:
        yield from schedulers.describe(profile)
    yield from recover(report_dir, environ, schedulers.settle)
    for run_id, why in schedulers.unknown.items():
        yield f"run {run_id} is not reported yet, since its jobs may run: {why}"


def describe_leftover(
    left: Leftover, profile: Profile, run_id: str, about: Mapping[str, Any]
) -> str:
    """A line on what may be left of a run that ends, and on what to do about it."""
    named = [*left.jobs, *(f"that of phase {name}" for name in left.phases)]
    word = "job" if len(named) == 1 else "jobs"
    todo = f"--cluster {profile.name} {REAP} {run_id} ends what is left"
    if find_blind_spot(about, profile):
        todo = "look for them, and end them"
    return f"not confirmed that these have ended: {word} {', '.join(named)}; {todo}"


class Schedulers:
    """What the schedulers say of dead runs; each is asked once, for all runs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.unknown: dict[str, str] = {}  # by run id: why nobody knows whether jobs are left
        self._named: set[str] = set()
        self._backends: dict[str, RunBackend] = {}
        self._left: dict[str, dict[str, list[str]]] = {}
        self._silent: dict[str, str] = {}

    def describe(self, profile: Profile) -> Iterator[str]:
        """A line on each dead run of the profile that can be attached."""
        runs = _list_visible(profile)
        self._named = {run.run_id for run in runs}
        if runs and self._ask(profile, lambda: runs) is None:
            names = shorten([run.run_id for run in runs], MOST_JOBS)
            why = f"{self._silent[_key(profile)]}{_describe_limit(runs)}"
            yield f"cannot tell whether jobs are left of {names}: {why}"
            return
        for run in runs:
            jobs = self._left[_key(profile)][run.run_id]
            todo = f"{REAP} {run.run_id} ends it"
            if is_of_phases(read_json(run.run) or {}):
                todo = f"{ATTACH} {run.run_id} judges it, {todo}"
            if jobs:
                listed = f"{plural(len(jobs), 'job')} left ({shorten(jobs, MOST_JOBS)})"
                yield f"run {run.run_id} has {listed}, and no process: {todo}"
            elif read_journal(run).detached:
                yield f"run {run.run_id} is detached, and its jobs have ended: {todo}"
            else:
                _close_judged(run, self._backends[_key(profile)])

    def settle(self, run: RunDir, about: Mapping[str, Any]) -> bool:
        """Whether a dead run can be reported, since nothing of it runs any more; then each of its
        jobs has a result. Raises OSError."""
        if find_stranger(run.root):
            return False
        journal, profile = require_journal(run), _load_profile(about, self._environ)
        if journal.detached:
            return False
        are_over = not (journal.left or journal.unanswered)
        if profile is None:
            return are_over or is_abandoned(run)
        if are_over:
            return _settle_jobs(run, about, profile, None)
        if blind := find_blind_spot(about, profile):
            if not all(_must_be_over(run, job) for job in (*journal.left, *journal.unanswered)):
                self.unknown[run.run_id] = f"it {blind}"
                return is_abandoned(run)
            return _settle_jobs(run, about, profile, None)
        left = self._ask(profile, lambda: [*_list_visible(profile), run], run.run_id)
        if left is None:
            with contextlib.suppress(OSError):  # on a full disk it is silent from now on
                create_once(run.silence, {})
            return self._settle_silent(run, about, profile, journal)
        run.silence.unlink(missing_ok=True)
        backend = self._backends[_key(profile)]
        return not left[run.run_id] and _settle_jobs(run, about, profile, backend)

    def _settle_silent(
        self, run: RunDir, about: Mapping[str, Any], profile: Profile, journal: RunJournal
    ) -> bool:
        """As `settle`, while the scheduler does not answer: what runs then must have ended."""
        until = find_latest_end(run, journal)
        if time.time() < until and not is_abandoned(run):
            self._remark(run, f"{self._silent[_key(profile)]}{_describe_limit([run])}")
            return False
        if _settle_jobs(run, about, profile, None, gives_up=True):
            return True
        self._remark(run, f"{self._silent[_key(profile)]}; a job of it has just started")
        return False

    def _remark(self, run: RunDir, why: str) -> None:
        if run.run_id not in self._named:
            self.unknown[run.run_id] = why

    def _ask(
        self, profile: Profile, find_runs: Callable[[], Sequence[RunDir]], run_id: str = ""
    ) -> dict[str, list[str]] | None:
        """By run id, the jobs of dead runs that have not ended, at least those of one run; None if
        nobody says so. The profile's scheduler is asked about all of `find_runs` at once."""
        from .collection import scheduler_environ

        key = _key(profile)
        known = self._left.get(key)
        if known is not None and (not run_id or run_id in known):
            return known
        if key in self._silent:
            return None
        environ, problems = scheduler_environ(profile, self._environ)
        backend = make_backend(profile, environ)
        try:
            if problems or not isinstance(backend, RunBackend):
                raise SchedulerSilent("; ".join(map(str, problems)) or "it cannot be asked")
            self._backends[key] = backend
            self._left[key] = {**(known or {}), **backend.jobs_of_runs(find_runs())}
        except SchedulerSilent as silence:
            self._silent[key] = str(silence)
            return None
        return self._left[key]


def _key(profile: Profile) -> str:
    """One cluster of one file."""
    return f"{profile.file}:{profile.name}"


def _list_visible(profile: Profile) -> list[RunDir]:
    """The dead runs of the profile whose jobs can be seen from here."""
    runs = list_dead_runs(profile)
    return [run for run in runs if not find_blind_spot(read_json(run.run) or {}, profile)]


def _describe_limit(runs: Sequence[RunDir]) -> str:
    """Until when dead runs are not reported because their scheduler is silent. A detached one is
    not reported at all."""
    journals = [(run, read_journal(run)) for run in runs]
    ends = [find_latest_end(run, known) for run, known in journals if not known.detached]
    who = "it is" if len(ends) == 1 else "they are"
    return f"; if that lasts, {who} reported from {format_here(max(ends))} on" if ends else ""


def _close_judged(run: RunDir, backend: RunBackend) -> None:
    """Close a run of which nothing runs any more, if each of its jobs has a result: its controller
    did not, because the scheduler had not confirmed that they ended."""
    from .unwatched_jobs import UnwatchedJobs

    report = parse_text((read_json(run.run) or {}).get("report"))
    if not report or not (Path(report) / "report.json").is_file():
        return  # `recover` says that its controller was killed
    with seize_run(run) as dead, contextlib.suppress(OSError):
        journal = require_journal(run)
        are_judged = all(job.may_run for job in journal.left) and not journal.unanswered
        if not (dead and are_judged and journal.jobs):
            return
        if UnwatchedJobs(run, journal, backend).ask() == []:
            writer = FencedJournal(run, ControllerFence(run))
            writer.write("closed", confirmed=True)
            writer.close()


def _must_be_over(run: RunDir, job: JournalledJob) -> bool:
    """Whether a job that nobody can ask about has ended: each of its nodes has written its result,
    or its time is over."""
    directory = run.phase(job.phase).job(job.number)
    spec = read_json(directory.spec) or {}
    nodes, timeout_s = parse_int(spec.get("nodes")), parse_finite(spec.get("timeout_s"))
    place = directory.attempts()[-1]
    if nodes and all(place.node_result(rank).exists() for rank in range(nodes)):
        return True
    return time.time() > job.intended + (timeout_s or 0.0) + START_S


def find_latest_end(run: RunDir, journal: RunJournal) -> float:
    """When the jobs of a dead run must have ended whatever its scheduler would say, in Unix
    seconds. One that has started has its own limit; one that has not, or that waits to be started
    again, is given up then, if the scheduler has been silent for a while."""
    try:
        seen = run.run.stat().st_mtime
    except OSError:
        seen = time.time()
    jobs = (*journal.left, *journal.unanswered)
    given_up = max(seen + GIVEN_UP_S, _find_silence(run) + SILENCE_S)
    return max((_find_end(run, job, given_up) for job in jobs), default=seen)


def _find_silence(run: RunDir) -> float:
    """Since when its scheduler has been silent about a dead run, in Unix seconds."""
    try:
        return run.silence.stat().st_mtime
    except OSError:
        return time.time()


def _find_end(run: RunDir, job: JournalledJob, given_up: float) -> float:
    directory = run.phase(job.phase).job(job.number)
    place, spec = directory.attempts()[-1], read_json(directory.spec) or {}
    nodes, timeout_s = parse_int(spec.get("nodes")), parse_finite(spec.get("timeout_s"))
    claim = read_claim(place)
    if claim is None or claim.time is None:
        return given_up
    results = [read_node_result(place, rank) for rank in range(nodes or 0)]
    if results and all(result.result for result in results):
        return given_up if any(result.requeues for result in results) else claim.time
    return claim.time + (timeout_s or 0.0) + START_S


def is_abandoned(run: RunDir) -> bool:
    """Whether a run is so old that nothing of it can run any more, whatever its scheduler says."""
    try:
        return time.time() - run.run.stat().st_mtime > ABANDONED_S
    except OSError:
        return False


def _settle_jobs(
    run: RunDir,
    about: Mapping[str, Any],
    profile: Profile,
    backend: RunBackend | None,
    gives_up: bool = False,
) -> bool:
    """Judge the jobs of a dead run; return whether all of them have ended. Without a backend, their
    own results are all that is known; if it `gives_up`, jobs that have not started are kept from
    starting."""
    from .unwatched_jobs import UnwatchedJobs, withdraw_unanswered

    fence = ControllerFence(run)
    journal = FencedJournal(run, fence)
    try:
        known = require_journal(run)
        withdraw_unanswered(run, known)
        jobs = UnwatchedJobs(run, known, backend)
        unstarted = jobs.give_up(NOT_STARTED) if gives_up else {}
        if unstarted is None:
            return False  # one has started just before
        if gives_up and time.time() < find_latest_end(run, known) and not is_abandoned(run):
            return False
        if (jobs.ask() != [] or jobs.may_show_results()) and not is_abandoned(run):
            return False
        jobs.judge(profile, journal, unstarted)
        why = "the run's process was killed before it submitted the phase"
        phases = parse_texts(about.get("phases_chosen"))
        jobs.judge_others(phases, profile, journal, Judgement("never_ran", why))
    finally:
        journal.close()
    return True


def _load_profile(about: Mapping[str, Any], environ: Mapping[str, str]) -> Profile | None:
    """The current profile of a run's cluster; None if it is gone, or has another backend."""
    config, cluster = parse_text(about.get("config")), parse_text(about.get("cluster"))
    if not config or not cluster:
        return None
    try:
        profile = load_cluster_file(Path(config), environ).profile(cluster)
    except (KeyError, OSError, UsageProblems):
        return None
    return profile if profile.backend == about.get("backend") else None
