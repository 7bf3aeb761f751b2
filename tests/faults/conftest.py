"""What the tests of faults share: suites of their own, of which nothing may be left running."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab

from ..needs import need_lab
from .harness import Suite

LAB_NODES = 5


@pytest.fixture
def broken(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Suite:
    """An empty suite on a local cluster; no process of it may be left when the test ends."""
    return Suite(tmp_path, leftovers[0])


@pytest.fixture(scope="session")
def faults_lab() -> Iterator[lab.Lab]:
    """A real Slurm of these tests' own, whose nodes they may take down."""
    need_lab()
    name = f"faults-{os.getpid()}"
    yield lab.up(lab.LabSettings(name=name, nodes=LAB_NODES))
    lab.down(name)


@pytest.fixture
def on_lab(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], faults_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm."""
    suite = Suite(tmp_path, leftovers[0])
    suite.use_slurm(faults_lab.slurm_conf)
    return suite
