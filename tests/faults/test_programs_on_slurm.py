"""The faults of programs again, staged in jobs of a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import LOCAL, Fault
from tests.support.harness import Outcome, Suite
from tests.support.labs import running_lab
from tests.support.leftovers import none_left

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

NODES = 4
# What a node of Slurm changes is judged elsewhere; these are judged by what the ranks recorded.
FAMILIES = {"gradients", "data", "numbers", "straggler", "checkpoint", "death", "out of step"}
SHARED = {"references"}  # keys of a profile in which each phase has an entry of its own
FAULTS = [
    fault
    for fault in LOCAL
    if (fault.family in FAMILIES or fault.failed) and not (set(fault.profile) - SHARED)
]


@pytest.fixture(scope="module")
def outcome(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcome]:
    """The run in which all selected faults are staged, two jobs at a time."""
    selected = [
        item.callspec.params["fault"]
        for item in request.session.items
        if item.getparent(pytest.Module) is request.node and hasattr(item, "callspec")
    ]
    settings = lab.LabSettings(name="programs", nodes=NODES)
    with running_lab(settings) as running, none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("programs"), marker, real_torchrun=True)
        suite.use_slurm(running.slurm_conf)
        suite.profile["limits"]["max_jobs"] = 2
        yield staged.run_together(selected, suite)


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_fault_is_found_on_slurm(fault: Fault, outcome: Outcome) -> None:
    """The same criteria fail, and the same rank is named, as on virtual nodes."""
    staged.check(fault, outcome, lambda name, value: None)
