"""A small Slurm for these tests alone, whose partitions and nodes they may change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.faults.harness import Suite
from tests.support.needs import need_lab

NODES = 3


@pytest.fixture(scope="session")
def own_lab() -> Iterator[lab.Lab]:
    need_lab()
    name = f"preflight-{os.getpid()}"
    yield lab.up(lab.LabSettings(name=name, nodes=NODES))
    lab.down(name)


@pytest.fixture
def on_lab(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], own_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm; the test must leave no process behind."""
    suite = Suite(tmp_path, leftovers[0])
    suite.use_slurm(own_lab.slurm_conf)
    return suite
