"""Fixtures for the tests of cluster.yaml: load a text, its problems, and its profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.config.cluster_file import ClusterFile, load_cluster_file
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.text import UsageProblems


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., ClusterFile]:
    """Load a text as cluster.yaml, with the given environment."""

    def read(text: str | bytes, **environ: str) -> ClusterFile:
        path = tmp_path / "cluster.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_cluster_file(path, environ)

    return read


@pytest.fixture
def profile(loaded: Callable[..., ClusterFile]) -> Callable[..., Profile]:
    """The profile `one` of a text."""
    return lambda text, **environ: loaded(text, **environ).profile("one")


@pytest.fixture
def problems(profile: Callable[..., Profile], tmp_path: Path) -> Callable[..., list[str]]:
    """The problems of a text, or of its profile `one`, without the directory in them."""

    def read_problems(text: str | bytes, **environ: str) -> list[str]:
        with pytest.raises(UsageProblems) as raised:
            profile(text, **environ)
        return [str(problem).replace(f"{tmp_path}/", "") for problem in raised.value.problems]

    return read_problems


@pytest.fixture
def one_slurm() -> str:
    """A minimal file with a Slurm profile `one`."""
    return """\
clusters:
  one:
    backend: slurm
    shared_dir: /shared
    hardware: {gpu: A100, gpus_per_node: 2}
    phases: {ddp_2gpu: }
"""
