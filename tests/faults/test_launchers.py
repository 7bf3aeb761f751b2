"""Under each launcher a rank that dies, hangs or raises is named, as under torchrun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults import staged
from tests.faults.table import LOCAL, Fault
from tests.support.harness import Suite

FAMILIES = ("death", "hang")
# What `make test` stages; `make test-all` stages both families under each launcher.
QUICK = ("killed_in_step", "hangs_in_step")
FAULTS = [
    fault for fault in LOCAL if fault.family in FAMILIES and not fault.replayed and not fault.usage
]


def under(launcher: str, fault: Fault) -> Fault:
    """The same fault under this launcher: on two nodes, except for DeepSpeed's, which has one."""
    changed = replace(fault, settings={**fault.settings, "launcher": launcher})
    if launcher != "deepspeed" and fault.nodes == 1:
        words = tuple(word.replace("rank 1 (local0)", "rank 1 (local1)") for word in fault.words)
        return replace(changed, nodes=2, ranks_per_node=1, words=words)
    return changed


def cases(*launchers: str) -> list[object]:
    return [
        pytest.param(
            under(launcher, fault),
            id=f"{launcher}-{fault.name}",
            marks=[] if fault.name in QUICK else [pytest.mark.slow],
        )
        for launcher in launchers
        for fault in FAULTS
        # DeepSpeed's launcher runs on one node, and a plain task is one rank.
        if not (launcher == "deepspeed" and fault.nodes > 1)
        if not (launcher == "none" and fault.ranks_per_node * fault.nodes > 2)
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


@pytest.mark.lab
def test_task_that_fails_before_its_rank_ends_the_step(lab_suite: Suite) -> None:
    """srun waits for the other tasks, and so would the run: for as long as a rank may take to
    start. The last line of its stderr says why."""
    program = lab_suite.path / "fails.py"
    program.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ImportError('libmissing.so')\n"
        "time.sleep(600)\n"
    )
    lab_suite.profile["stage_limits_s"] = {"init": 120}
    lab_suite.phase("fails", script=program, nodes=2, gpus_per_node=1, launcher="srun")
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    finding, nodes = outcome.finding("fails"), outcome.phase("fails")["nodes"]
    assert finding["id"] == "torchrun-failed", finding
    assert finding["hosts"] == [nodes[1]["node"]], finding
    assert "srun's step ended with status 1" in finding["cause"]
    assert "libmissing.so" in finding["cause"]
    assert outcome.phase("fails")["run_s"] < 30
    left = outcome.evidence("fails").directory.root.rglob("environment.json")
    assert list(left) == []
