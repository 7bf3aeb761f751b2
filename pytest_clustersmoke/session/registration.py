"""`--cluster-list`: the clusters of the file, a line each."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from ..config.cluster_file import find_config, load
from ..text import Problem, UsageProblems
from .suite import Suite


def print_clusters(config: pytest.Config) -> int:
    from ..config.cluster_file import find_config, load
    from ..text import UsageProblems

    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        file = load(path, os.environ)
    except UsageProblems as problems:
        raise pytest.UsageError(str(problems)) from None
    width = max(len(name) for name in file.names)
    for name in file.names:
        try:
            profile = file.profile(name)
        except UsageProblems as problems:  # a variable that only that cluster's users set
            print(f"{name:<{width}}  cannot be used here: {problems.problems[0]}")
            continue
        gpus = f"{profile.hardware.gpus_per_node} x {profile.hardware.gpu} per node"
        print(f"{name:<{width}}  {profile.backend:<5}  {gpus}  {profile.description}".rstrip())
        print(f"{'':<{width}}  phases: {', '.join(profile.phases)}")
    return 0


# Which suite a session with a cluster gets: its own, that of a proof, or xdist's two.


def register(config: pytest.Config, name: str) -> None:
    """Read the profile and register the suite; a worker gets one that only waits."""
    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        profile = load(path, os.environ).profile(name)
    except UsageProblems as found:
        if getattr(config.option, "tx", None):
            raise pytest.UsageError(str(found)) from None
        config.pluginmanager.register(Unusable(found.problems), "clustersmoke-suite")
        return
    jobs = config.getoption("--cluster-max-jobs")
    if jobs:
        limits = profile.limits.model_copy(update={"max_jobs": jobs})
        profile = profile.model_copy(update={"limits": limits})
    suite: Suite
    if config.getoption("--cluster-prove"):
        from .prove_suite import ProveSuite

        suite = ProveSuite(config, profile)
    elif hasattr(config, "workerinput"):
        from .xdist_suites import WorkerSuite

        suite = WorkerSuite(config, profile)
    elif getattr(config.option, "tx", None):  # xdist's workers, by -n or --tx
        from .xdist_suites import ControllerSuite

        suite = ControllerSuite(config, profile)
    else:
        suite = Suite(config, profile)
    config.pluginmanager.register(suite, "clustersmoke-suite")


class Unusable:
    """In the place of a suite where cluster.yaml cannot be used: what is wrong with the phases'
    markers is told with it, all at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._problems = list(problems)

    def read(self, read: object, problems: list[Problem], items: object) -> None:
        raise pytest.UsageError("\n".join(map(str, [*self._problems, *problems])))

    def header(self) -> list[str]:
        return []
