"""Which suite a session with a cluster gets: its own, that of a proof, or xdist's two."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from .cluster import find_config, load
from .errors import Problem, UsageProblems
from .suite import Suite


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
        from .prove import ProveSuite

        suite = ProveSuite(config, profile)
    elif hasattr(config, "workerinput"):
        from .distributed import WorkerSuite

        suite = WorkerSuite(config, profile)
    elif getattr(config.option, "tx", None):  # xdist's workers, by -n or --tx
        from .distributed import ControllerSuite

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
