"""Under each launcher a rank that dies, hangs or raises is named, as under torchrun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults import staged
from tests.faults.table import LOCAL, Fault
from tests.support.harness import Suite

FAMILIES = ("death", "hang")
# What `make test` stages; `make test-all` stages both families under each launcher.
QUICK = {
    ("accelerate", "killed_in_step"),
    ("deepspeed", "hangs_in_step"),
    ("torchrun-c10d", "hangs_in_step"),
    ("none", "killed_in_step"),
    ("srun", "killed_in_step"),
    ("srun", "hangs_in_step"),
}
# Launchers whose nodes meet, or that start one rank on each node, are tried on two.
ON_TWO_NODES = ("torchrun-c10d", "none")
FAULTS = [
    fault for fault in LOCAL if fault.family in FAMILIES and not fault.replayed and not fault.usage
]


def under(launcher: str, fault: Fault) -> Fault:
    """The same fault under this launcher."""
    changed = replace(fault, settings={**fault.settings, "launcher": launcher})
    if launcher in ON_TWO_NODES and fault.nodes == 1:
        words = tuple(word.replace("rank 1 (local0)", "rank 1 (local1)") for word in fault.words)
        return replace(changed, nodes=2, ranks_per_node=1, words=words)
    return changed


def cases(*launchers: str) -> list[object]:
    return [
        pytest.param(
            under(launcher, fault),
            id=f"{launcher}-{fault.name}",
            marks=[] if (launcher, fault.name) in QUICK else [pytest.mark.slow],
        )
        for launcher in launchers
        for fault in FAULTS
        # DeepSpeed's launcher runs on one node, and a plain task is one rank.
        if not (launcher == "deepspeed" and fault.nodes > 1)
        if not (launcher == "none" and fault.nodes > 1)
    ]


@pytest.mark.parametrize("fault", cases("torchrun-c10d", "accelerate", "deepspeed", "none"))
def test_fault_is_named_as_under_torchrun(fault: Fault, torch_suite: Suite) -> None:
    """The finding has the same id, rank, host and words, in time."""
    staged.check(fault, staged.run_together([fault], torch_suite), lambda *_: None)


@pytest.mark.lab
@pytest.mark.parametrize("fault", cases("srun"))
def test_fault_in_a_step_of_srun_is_named(fault: Fault, lab_suite: Suite) -> None:
    """Also by nodes that started none of their ranks themselves."""
    staged.check(fault, staged.run_together([fault], lab_suite), lambda *_: None)
