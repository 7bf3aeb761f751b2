"""`--cluster-list`, and the choice of a session's suite: a run's, a proof's, a screen's or one of
xdist's."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import pytest

from ..config.cluster_file import find_config, load_cluster_file
from ..config.profile import IsolationBudget, Profile
from ..text import Problem, UsageProblems
from .collection import scheduler_environ
from .directory_watch import DirectoryWatch
from .items import SUITE, Mistakes
from .suite import Suite

PATH_OPTIONS = ("--cluster-config", "--cluster-report-dir")


def print_clusters(config: pytest.Config) -> int:
    """Print the clusters of the cluster file, and return the exit status."""
    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        file = load_cluster_file(path, os.environ)
    except UsageProblems as problems:
        raise pytest.UsageError(str(problems)) from None
    width = max(len(name) for name in file.names)
    for name in file.names:
        try:
            profile = file.profile(name)
        except UsageProblems as problems:
            # Such as an unset variable that only the users of that cluster set.
            print(f"{name:<{width}}  cannot be used here: {problems.problems[0]}")
            continue
        gpus = f"{profile.hardware.gpus_per_node} x {profile.hardware.gpu} per node"
        print(f"{name:<{width}}  {profile.backend:<5}  {gpus}  {profile.description}".rstrip())
        print(f"{'':<{width}}  phases: {', '.join(profile.phases)}")
    return 0


def reap_runs(config: pytest.Config, words: Sequence[str]) -> int:
    """End what is left of these runs, say what was done, and return the exit status."""
    from .reaper import reap

    name = config.getoption("--cluster") or config.getini("cluster")
    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        profile = load_cluster_file(path, os.environ).profile(name)
        environ, problems = scheduler_environ(profile, os.environ)
        if problems:
            raise UsageProblems(problems)
        watch = DirectoryWatch(profile)
        config.add_cleanup(watch.stop)
        watch.start()
        return reap(profile, environ, words, print)
    except UsageProblems as problems:
        raise pytest.UsageError(str(problems)) from None


def register_suite(config: pytest.Config, name: str) -> None:
    """Read the profile, and register the suite of the session."""
    if not hasattr(config, "workerinput"):
        refuse_moved_root(config)
    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        profile = load_cluster_file(path, os.environ).profile(name)
        if config.getoption("--cluster-isolate") and not hasattr(config, "workerinput"):
            refuse_isolation(config, profile)
        attachment = None
        watch = DirectoryWatch(profile)
        if not hasattr(config, "workerinput"):
            config.add_cleanup(watch.stop)
            watch.start()
        if config.getoption("--cluster-attach") or config.getoption("--cluster-detach"):
            from .attachment import read_options

            attachment = read_options(config, profile)
    except UsageProblems as error:
        if getattr(config.option, "tx", None) or config.getoption("--cluster-screen"):
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(UnusableSuite(error.problems), SUITE)
        return
    if config.getoption("--cluster-avoid"):
        from .avoided_nodes import refuse_backend

        refuse_backend(profile, config.getoption("--cluster-here"))
    chosen: dict[str, object] = {}
    if jobs := config.getoption("--cluster-max-jobs"):
        chosen["max_jobs"] = jobs
    if wait := config.getoption("--cluster-wait"):
        chosen["queue_wait_s"] = float(wait)
    if budget := config.getoption("--cluster-isolate-budget"):
        tests, minutes = budget
        chosen["isolate"] = IsolationBudget(tests=tests, minutes=minutes)
    limits = profile.limits.model_copy(update=chosen)
    profile = profile.model_copy(update={"limits": limits})
    if config.getoption("--cluster-screen"):
        from .screen_suite import ScreenSuite

        config.pluginmanager.register(ScreenSuite(config, profile), SUITE)
        stay_alone(config)
    elif config.getoption("--cluster-prove"):
        from .prove_suite import ProveSuite

        config.pluginmanager.register(ProveSuite(config, profile), SUITE)
    elif hasattr(config, "workerinput"):
        from .xdist_suites import WorkerSuite

        config.pluginmanager.register(WorkerSuite(config, profile), SUITE)
    else:
        suite = Suite(config, profile, attachment)
        config.pluginmanager.register(suite, SUITE)
        if config.getoption("--cluster-isolate"):
            from .fault_isolation import IsolationOfPhases

            config.pluginmanager.register(IsolationOfPhases(suite))
        if getattr(config.option, "tx", None):  # pytest-xdist, by -n or --tx
            control_workers(config, suite)
    if isinstance(owner := config.pluginmanager.get_plugin(SUITE), Suite):
        watch.suite = owner


def refuse_isolation(config: pytest.Config, profile: Profile) -> None:
    """Refuse --cluster-isolate where no phase can be pinned to nodes, and beside options under
    which no phase is judged. Raises UsageProblems."""
    option = "--cluster-isolate"
    others = ["--cluster-prove", "--cluster-detach", "--cluster-screen"]
    clash = [other for other in others if config.getoption(other, default=False)]
    if clash:
        what = f"{option} and {clash[0]} exclude each other"
        raise UsageProblems([Problem(what, option, "one of them")])
    if profile.backend != "slurm":
        what = f"{option} pins jobs to nodes, which the backend of {profile.name} cannot"
        expected = "a profile with `backend: slurm`"
        raise UsageProblems([Problem(what, profile.where("backend"), expected)])


def control_workers(config: pytest.Config, suite: Suite) -> None:
    """Make this process xdist's controller; a dry run has no workers, so that its plan is printed
    once."""
    if config.getoption("--cluster-dry-run"):
        stay_alone(config)
        return
    from .xdist_suites import XdistController

    config.pluginmanager.register(XdistController(suite))


def stay_alone(config: pytest.Config) -> None:
    """Keep pytest-xdist, if it is there, from starting workers."""
    if hasattr(config.option, "tx"):
        config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None


def refuse_moved_root(config: pytest.Config) -> None:
    """Refuse a run whose root directory pytest may have derived from the path of our own option.

    Before pytest knows our options, it takes an existing path after one of them for a test path,
    and another root directory has other tests. Raises UsageError.
    """
    words = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *config.invocation_params.args]
    here = config.invocation_params.dir
    if config.rootpath == here or config.getoption("rootdir"):
        return
    for option, path in pairwise(map(str, words)):
        if option in PATH_OPTIONS and (here / path).exists():
            raise pytest.UsageError(
                f"{option} {path}: pytest takes this path for a test path and uses "
                f"{config.rootpath} as its root directory; expected {option}={path}, or also "
                "--rootdir=."
            )


class UnusableSuite:
    """Takes a suite's place if cluster.yaml cannot be used: its problems are reported together
    with those of the phases' markers."""

    collection = None

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._problems = list(problems)

    def resolve_phases(self, markers: object, mistakes: Mistakes, items: object) -> None:
        problems = chain(self._problems, *mistakes.values())
        raise pytest.UsageError(str(UsageProblems(problems)))

    def header(self) -> list[str]:
        return []
