"""Broken rank programs, run for real on this machine: each fails what it breaks, nothing else."""

from __future__ import annotations

import pytest

from .harness import Suite
from .table import CRITERIA, FAULTS, UNMEASURED, Fault

# Of a rank that stands still; a step of these sizes takes milliseconds.
STEP_LIMIT_S = 4


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_broken_program_fails_what_it_breaks_and_nothing_else(fault: Fault, broken: Suite) -> None:
    """The criteria that fail are exactly the fault's, and the cluster is UNFIT."""
    broken.profile["stage_limits_s"] = {"train_step": STEP_LIMIT_S}
    broken.phase(
        fault.name,
        fault.program,
        nodes=fault.nodes,
        gpus_per_node=fault.ranks_per_node,
        args=dict(fault.args),
    )
    outcome = broken.run()
    assert outcome.status == 1, outcome.output
    assert outcome.report["verdict"] == "UNFIT"
    phase = outcome.phase(fault.name)
    by_result: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for name, result in phase["criteria"].items():
        by_result[result].add(name)
    if fault.finding:
        assert by_result == {"passed": set(), "failed": CRITERIA, "skipped": set()}
        finding = outcome.finding(fault.name)
        assert (finding["id"], finding["ranks"]) == (fault.finding, [fault.rank]), finding
    else:
        green = CRITERIA - fault.failed - UNMEASURED
        assert by_result == {"passed": green, "failed": fault.failed, "skipped": UNMEASURED}
