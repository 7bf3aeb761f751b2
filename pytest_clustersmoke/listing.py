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
    except UsageProblems as problems:
        raise pytest.UsageError(str(problems)) from None
    width = max(len(name) for name in file.names)
    for name in file.names:
        try:
            profile = file.profile(name)
        except UsageProblems as problems:  # a variable that only that cluster's users set
            print(f"{name:<{width}}  cannot be used here: {problems.problems[0]}")
            continue
        gpus = f"{profile.hardware.gpus_per_node} x {profile.hardware.gpu} a node"
        print(f"{name:<{width}}  {profile.backend:<5}  {gpus}  {profile.description}".rstrip())
        print(f"{'':<{width}}  phases: {', '.join(profile.phases)}")
    return 0
