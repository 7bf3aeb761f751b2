"""Phases that a real Slurm would not run are reported before anything is submitted, all together
and with numbers; the other phases go on."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from tests.faults.harness import DONE, Outcome, Suite, wait_for
from tests.preflight.conftest import NODES
from tests.support.needs import need_lab

pytestmark = pytest.mark.lab
USER = pwd.getpwuid(os.getuid()).pw_name


def findings(outcome: Outcome, phase: str) -> dict[str, dict[str, Any]]:
    """The phase's findings by their ids."""
    return {one["id"]: one for one in outcome.phase(phase)["findings"]}


def submitted(outcome: Outcome) -> list[str]:
    return [str(one["phase"]) for one in outcome.journal("submitted")]


@contextmanager
def changed(suite: Suite, words: tuple[str, ...], back: tuple[str, ...]) -> Iterator[None]:
    suite.slurm("scontrol", "update", *words)
    try:
        yield
    finally:
        suite.slurm("scontrol", "update", *back)


def test_all_phases_that_slurm_would_not_run_are_reported(on_lab: Suite) -> None:
    """Partition, nodes, GPUs, CPUs and time, each with its numbers and its line of cluster.yaml.

    None of these phases is submitted; the phase that can run does.
    """
    settings: dict[str, dict[str, Any]] = {
        "nowhere": {"slurm": {"partition": "mian"}},
        "wide": {},
        "gpus": {},
        "long": {"slurm": {"partition": "high", "time": 120}},
        "twice": {"slurm": {"partition": "high", "time": 120, "cpus_per_task": 9}},
    }
    on_lab.profile["phases"].update(settings)
    on_lab.profile["hardware"]["gpus_per_node"] = 3
    on_lab.phase("nowhere", "idle.py", DONE)
    on_lab.phase("wide", "idle.py", DONE, nodes=NODES + 1)
    on_lab.phase("gpus", "idle.py", DONE, gpus_per_node=3)
    on_lab.phase("long", "idle.py", DONE)
    on_lab.phase("twice", "idle.py", DONE)
    on_lab.phase("good", "idle.py", DONE)
    high = "partitionname=high"
    with changed(on_lab, (high, "MaxTime=60"), (high, "MaxTime=UNLIMITED")):
        outcome = on_lab.run()
    assert outcome.status == 6, outcome.output
    assert submitted(outcome) == ["good"]
    assert outcome.phase("good")["outcome"] == "passed" and not findings(outcome, "good")
    for name in settings:
        assert outcome.phase(name)["outcome"] == "never_ran", outcome.output
    one = findings(outcome, "nowhere")["partition-unknown"]
    assert "no partition `mian`" in one["cause"] and one["fix"] == "did you mean `main`?"
    yaml = (on_lab.path / "cluster.yaml").read_text().splitlines()
    evidence = one["evidence"][0]
    assert evidence["file"].endswith("cluster.yaml") and "mian" in yaml[evidence["line"] - 1]
    assert "invalid partition specified: mian" in one["evidence"][-1]["text"]
    wide = findings(outcome, "wide")["too-many-nodes"]["cause"]
    assert wide == f"phase wide asks for {NODES + 1} nodes, but partition main has {NODES}"
    assert "3 GPUs per node" in findings(outcome, "gpus")["too-many-gpus"]["cause"]
    for words in ("02:00:00", "01:00:00"):
        assert words in findings(outcome, "long")["time-over-limit"]["cause"]
    assert list(findings(outcome, "twice")) == ["time-over-limit", "submission-refused"]
    ends = [one["phase"] for one in outcome.journal("ended")]
    assert ends.index("good") == len(ends) - 1  # the others were reported before it ran


def test_usage_errors_are_reported_with_slurms_refusals(on_lab: Suite) -> None:
    """One run reports mistakes in files and everything that Slurm refuses; nothing is left."""
    shared = on_lab.path.with_name("shared")
    on_lab.profile |= {"node_local": [str(on_lab.path)], "shared_dir": str(shared)}
    on_lab.profile["phases"]["nowhere"] = {"slurm": {"partition": "mian"}}
    on_lab.phase("nowhere", "idle.py", DONE)
    on_lab.phase("wide", "idle.py", DONE, nodes=NODES + 1)
    on_lab.phase("good", "idle.py", DONE, nodes=2, args={"output_dir": f"{on_lab.path}/out"})
    outcome = on_lab.run()
    assert outcome.status == pytest.ExitCode.USAGE_ERROR, outcome.output
    for words in (
        f"output_dir={on_lab.path}/out, under {on_lab.path}",
        "no partition `mian`",
        "did you mean `main`?",
        f"phase wide asks for {NODES + 1} nodes, but partition main has {NODES}",
    ):
        assert words in outcome.output, (words, outcome.output)
    assert "preflight.txt" not in outcome.output  # no reference to a deleted file
    assert not shared.exists() and "good" not in on_lab.slurm("squeue")


def test_evidence_is_a_line_of_slurm(on_lab: Suite) -> None:
    """The file and line to which a finding points hold Slurm's output."""
    on_lab.phase("wide", "idle.py", DONE, nodes=NODES + 1)
    outcome = on_lab.run()
    evidence = findings(outcome, "wide")["too-many-nodes"]["evidence"][1]
    line = Path(evidence["file"]).read_text().splitlines()[evidence["line"] - 1]
    assert line.startswith("PartitionName=main ") and evidence["text"] == line[:600]


def test_partition_that_is_down_is_reported(on_lab: Suite) -> None:
    """Slurm would accept the job and never start it, so the phase is not submitted."""
    on_lab.profile["slurm"]["partition"] = "high"
    on_lab.phase("small", "idle.py", DONE)
    high = "partitionname=high"
    with changed(on_lab, (high, "State=DOWN"), (high, "State=UP")):
        outcome = on_lab.run()
    assert outcome.status == 6 and submitted(outcome) == []
    assert "partition high is DOWN" in findings(outcome, "small")["partition-down"]["cause"]


def test_drained_nodes_are_named_if_too_few_are_left(on_lab: Suite) -> None:
    """The phase that needs them has the outcome cluster_failed; each node has Slurm's reason, user
    and time. A phase for which enough nodes are left runs, and the start names the drained ones."""
    on_lab.phase("wide", "idle.py", DONE, nodes=NODES)
    on_lab.phase("small", "idle.py", DONE)
    drained = ("nodename=node1", "state=drain", "reason=ECC errors=12 State=IDLE")
    with changed(on_lab, drained, ("nodename=node1", "state=resume")):
        outcome = on_lab.run()
    assert outcome.status == 1, outcome.output
    assert outcome.report["verdict"] == "UNFIT"
    assert outcome.phase("wide")["outcome"] == "cluster_failed"
    (finding,) = outcome.phase("wide")["findings"]
    assert finding["id"] == "nodes-unavailable" and finding["hosts"] == ["node1"]
    for words in (
        f"of the {NODES}",
        "only 2 take jobs",
        "ECC errors=12 State=IDLE",
        "drain",
        f"; {USER} ",
    ):
        assert words in finding["cause"], finding["cause"]
    assert outcome.phase("small")["outcome"] == "passed"
    assert not findings(outcome, "small")
    assert f"preflight: 1 of the {NODES} nodes of partition main takes no jobs: node1 is " in (
        outcome.output
    )
    # Slurm regards a resumed node as not responding until it responds.
    wait_for(
        "node1", lambda: on_lab.slurm("sinfo", "-h", "-n", "node1", "-o", "%T")[:5] == "idle\n"
    )


def test_healthy_run_reports_nothing(on_lab: Suite) -> None:
    """No finding, no line; the record has Slurm's estimate of the start."""
    on_lab.phase("small", "idle.py", DONE)
    outcome = on_lab.run()
    assert outcome.status == 0, outcome.output
    assert "preflight:" not in outcome.output
    assert outcome.phase("small")["estimated_start"] > 0


@pytest.mark.slow_lab
def test_accounts_qos_and_their_limits_are_checked(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """With accounting: near matches for an account and a QOS; limits of a QOS with numbers."""
    need_lab(accounting=True)
    name = f"preflight-acct-{os.getpid()}"
    running = lab.up(lab.LabSettings(name=name, nodes=2, accounting=True))
    try:
        suite = Suite(tmp_path, leftovers[0])
        suite.use_slurm(running.slurm_conf)
        limits = ("MaxWall=00:30:00", "MaxTRES=node=1")
        suite.slurm("sacctmgr", "-i", "modify", "qos", "standby", "set", *limits)

        def known() -> bool:
            answer = suite.slurm("scontrol", "show", "assoc_mgr", "qos=standby", "flags=qos")
            return "MaxWallPJ=30" in answer

        wait_for("slurmctld to know the limits", known)
        suite.profile["phases"].update(
            {
                "account": {"slurm": {"account": "labb"}},
                "qos": {"slurm": {"qos": "standbye", "account": "lab"}},
                "limits": {"slurm": {"qos": "standby", "time": 60}},
            }
        )
        suite.phase("account", "idle.py", DONE)
        suite.phase("qos", "idle.py", DONE)
        suite.phase("limits", "idle.py", DONE, nodes=2)
        suite.phase("good", "idle.py", DONE)
        outcome = suite.run()
    finally:
        lab.down(name)
    assert outcome.status == 6, outcome.output
    assert submitted(outcome) == ["good"] and outcome.phase("good")["outcome"] == "passed"
    account = findings(outcome, "account")["account-refused"]
    assert "`labb`" in account["cause"] and account["fix"] == "did you mean `lab`?"
    assert "Invalid account" in account["evidence"][-1]["text"]
    qos = findings(outcome, "qos")["qos-refused"]
    assert "no QOS `standbye`" in qos["cause"] and qos["fix"] == "did you mean `standby`?"
    both = findings(outcome, "limits")
    assert set(both) == {"time-over-limit", "too-many-nodes"}
    assert "QOS standby allows a job at most 00:30:00" in both["time-over-limit"]["cause"]
    assert "QOS standby allows a job at most 1 (MaxTRES)" in both["too-many-nodes"]["cause"]
