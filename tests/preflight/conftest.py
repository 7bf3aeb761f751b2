"""A small Slurm for these tests alone, whose partitions and nodes they may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.support.harness import Suite
from tests.support.labs import running_lab

NODES = 3


@pytest.fixture(scope="session")
def own_lab() -> Iterator[lab.Lab]:
    with running_lab(lab.LabSettings(name="preflight", nodes=NODES)) as running:
        yield running


@pytest.fixture
def lab_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], own_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm; the test must leave no process behind."""
    suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
    suite.use_slurm(own_lab.slurm_conf)
    return suite
