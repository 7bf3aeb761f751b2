"""Under each launcher a rank that dies, hangs or raises is named, as under torchrun."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults import staged
from tests.faults.table import LOCAL, Fault
from tests.faults.watched_phase import LONG, WatchedPhase
from tests.support.harness import IDLE, Outcome, Suite

FAMILIES = ("death", "hang")
INIT_LIMIT_S = 120  # for a rank that never starts
# What `make test` stages, a death and a hang; `make test-all` stages both families under each
# launcher.
QUICK = {"killed_in_step": ("accelerate",), "hangs_in_step": ("torchrun-c10d",)}
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
            marks=[] if launcher in QUICK.get(fault.name, ()) else [pytest.mark.slow],
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
    lab_suite.profile["stage_limits_s"] = {"init": INIT_LIMIT_S}
    lab_suite.phase("fails", script=program, nodes=2, gpus_per_node=1, launcher="srun")
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    finding, nodes = outcome.finding("fails"), outcome.phase("fails")["nodes"]
    assert finding["id"] == "torchrun-failed", finding
    assert finding["hosts"] == [nodes[1]["node"]], finding
    assert "srun's step ended with status 1" in finding["cause"]
    assert "libmissing.so" in finding["cause"]
    assert outcome.phase("fails")["run_s"] < INIT_LIMIT_S
    left = outcome.evidence("fails").directory.root.rglob("environment.json")
    assert list(left) == []


def strike(suite: Suite, launcher: str, send: Callable[[int, int], None]) -> Outcome:
    """Run an idle phase under this launcher, and call `send` with the pids of pytest and of its
    first node once all ranks train. The suite's fixture looks for processes that are left."""
    nodes = 1 if launcher == "deepspeed" else 2
    suite.phase("idle", script=IDLE, nodes=nodes, args=LONG, launcher=launcher)
    phase = WatchedPhase(suite, "idle", nodes=nodes)
    with suite.started() as running:
        phase.wait()
        send(running.pid, phase.pid("claim", 0))
        return running.wait()


def check_end(suite: Suite, launcher: str, how: str) -> None:
    if how == "interrupted":
        outcome = strike(suite, launcher, lambda session, _: os.kill(session, signal.SIGINT))
        assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
        assert outcome.phase("idle")["outcome"] == "cancelled"
        return
    outcome = strike(suite, launcher, lambda _, node: os.kill(node, signal.SIGKILL))
    assert outcome.ret == 1, outcome.output
    finding, nodes = outcome.finding("idle"), outcome.phase("idle")["nodes"]
    # Without another node that saw it, and under Slurm, the job's end is all that is known.
    assert finding["id"] in ("launcher-failed", "job-failed"), finding
    assert nodes[0]["node"] in finding["cause"] and finding["ranks"] == [], finding


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupted", "killed"])
@pytest.mark.parametrize("launcher", ["torchrun-c10d", "accelerate", "deepspeed", "none"])
def test_nothing_outlives_the_run_or_its_node(launcher: str, how: str, torch_suite: Suite) -> None:
    """Ctrl-C, and the death of the process that started the launcher."""
    check_end(torch_suite, launcher, how)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_no_task_of_a_step_outlives_the_run_or_its_node(how: str, lab_suite: Suite) -> None:
    """Also on the node that did not start the step."""
    check_end(lab_suite, "srun", how)
