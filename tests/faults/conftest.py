"""What the tests of faults share: suites of real programs, of which nothing may be left running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import Fault
from tests.support.harness import Outcome, Suite
from tests.support.labs import running_lab
from tests.support.leftovers import none_left

LAB_NODES = 5


@pytest.fixture
def torch_suite(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Suite:
    """An empty suite on a local cluster; no process of it may be left when the test ends."""
    return Suite(tmp_path, leftovers[0], real_torchrun=True)


@pytest.fixture(scope="module")
def staged_together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Fault], Outcome]]:
    """Return the run in which a fault was staged.

    All selected tests of a family share one run, and so pytest's start. A fault that changes the
    cluster itself has a run of its own.
    """
    runs: dict[str, Outcome] = {}
    selected = [
        item.callspec.params["fault"]
        for item in request.session.items
        if item.getparent(pytest.Module) is request.node and hasattr(item, "callspec")
    ]
    with ExitStack() as stack:

        def run(fault: Fault) -> Outcome:
            alone = bool(fault.profile or fault.usage)
            key = fault.name if alone else fault.family
            if key not in runs:
                marker, _ = stack.enter_context(none_left())
                suite = Suite(tmp_path_factory.mktemp(key), marker, real_torchrun=True)
                family = [
                    other
                    for other in selected
                    if other.family == fault.family and not other.profile and not other.usage
                ]
                runs[key] = staged.run_together([fault] if alone else family, suite)
            return runs[key]

        yield run


@pytest.fixture(scope="session")
def faults_lab() -> Iterator[lab.Lab]:
    """A real Slurm of these tests' own, whose nodes they may take down."""
    with running_lab(lab.LabSettings(name="faults", nodes=LAB_NODES)) as running:
        yield running


@pytest.fixture
def lab_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], faults_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm."""
    suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
    suite.use_slurm(faults_lab.slurm_conf)
    return suite
