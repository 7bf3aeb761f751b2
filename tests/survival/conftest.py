"""A Slurm of these tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.support.harness import Suite
from tests.support.labs import running_lab


@pytest.fixture(
    scope="package",
    params=[
        pytest.param(False, id="plain"),
        pytest.param(True, id="accounting", marks=pytest.mark.slow),
    ],
)
def own_lab(request: pytest.FixtureRequest) -> Iterator[lab.Lab]:
    """Without accounting and with it, where Slurm also knows jobs that slurmctld has forgotten."""
    settings = lab.LabSettings(name="survival", nodes=2, accounting=request.param)
    with running_lab(settings) as running:
        yield running


@pytest.fixture
def lab_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], own_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm, with a fake torchrun."""
    suite = Suite(tmp_path, leftovers[0])
    suite.use_slurm(own_lab.slurm_conf)
    return suite
