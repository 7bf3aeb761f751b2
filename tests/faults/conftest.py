"""What the tests of faults share: suites of their own, of which nothing may be left running."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.harness import Outcome, Suite
from tests.faults.table import Fault
from tests.support.leftovers import none_left
from tests.support.needs import need_lab

LAB_NODES = 5


@pytest.fixture
def broken(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Suite:
    """An empty suite on a local cluster; no process of it may be left when the test ends."""
    return Suite(tmp_path, leftovers[0])


@pytest.fixture(scope="module")
def staged_together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Fault], Outcome]]:
    """The run in which a fault was staged: one for all chosen tests of its family, for pytest's
    start is shared so. A fault that changes the cluster itself has a run of its own."""
    runs: dict[str, Outcome] = {}
    chosen = [
        item.callspec.params["fault"]
        for item in request.session.items
        if item.getparent(pytest.Module) is request.node and hasattr(item, "callspec")
    ]
    with ExitStack() as stack:

        def outcome(fault: Fault) -> Outcome:
            key = fault.name if fault.profile or fault.usage else fault.family
            if key not in runs:
                mark, _ = stack.enter_context(none_left())
                suite = Suite(tmp_path_factory.mktemp(key), mark)
                alike = [
                    one
                    for one in chosen
                    if one.family == fault.family and not one.profile and not one.usage
                ]
                runs[key] = staged.together([fault] if key == fault.name else alike, suite)
            return runs[key]

        yield outcome


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
