"""`--cluster-list`: the clusters of the file, a line each."""

from __future__ import annotations

import os

import pytest


def print_clusters(config: pytest.Config) -> int:
    from .cluster import find_config, load
    from .errors import UsageProblems

    try:
        path = find_config(config.rootpath, config.getoption("--cluster-config"))
        file = load(path, os.environ)
        profiles = [file.profile(name) for name in file.names]
    except UsageProblems as problems:
        raise pytest.UsageError(str(problems)) from None
    width = max(len(name) for name in file.names)
    for profile in profiles:
        gpus = f"{profile.hardware.gpus_per_node} x {profile.hardware.gpu} a node"
        print(f"{profile.name:<{width}}  {profile.backend:<5}  {gpus}")
        print(f"{'':<{width}}  phases: {', '.join(profile.phases) or 'none'}")
    return 0
