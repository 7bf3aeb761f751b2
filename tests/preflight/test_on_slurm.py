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
from tests.preflight.conftest import NODES
from tests.support.harness import IDLE, Outcome, Suite
from tests.support.labs import running_lab
from tests.support.waiting import wait_for

pytestmark = pytest.mark.lab
USER = pwd.getpwuid(os.getuid()).pw_name


def findings(outcome: Outcome, phase: str) -> dict[str, dict[str, Any]]:
    """The phase's findings by their ids."""
    return {finding["id"]: finding for finding in outcome.phase(phase)["findings"]}


def submitted(outcome: Outcome) -> list[str]:
    return [str(event["phase"]) for event in outcome.events("submitted")]


@contextmanager
def changed(suite: Suite, words: tuple[str, ...], back: tuple[str, ...]) -> Iterator[None]:
    suite.slurm("scontrol", "update", *words)
    try:
        yield
    finally:
        suite.slurm("scontrol", "update", *back)


def test_all_phases_that_slurm_would_not_run_are_reported(lab_suite: Suite) -> None:
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
    lab_suite.profile["phases"].update(settings)
    lab_suite.profile["hardware"]["gpus_per_node"] = 3
    lab_suite.phase("nowhere", script=IDLE)
    lab_suite.phase("wide", script=IDLE, nodes=NODES + 1)
    lab_suite.phase("gpus", script=IDLE, gpus_per_node=3)
    lab_suite.phase("long", script=IDLE)
    lab_suite.phase("twice", script=IDLE)
    lab_suite.phase("good", script=IDLE)
    high = "partitionname=high"
    with changed(lab_suite, (high, "MaxTime=60"), (high, "MaxTime=UNLIMITED")):
        outcome = lab_suite.run_apart()
    assert outcome.ret == 6, outcome.output
    assert submitted(outcome) == ["good"]
    assert outcome.phase("good")["outcome"] == "passed" and not findings(outcome, "good")
    for name in settings:
        assert outcome.phase(name)["outcome"] == "never_ran", outcome.output
    finding = findings(outcome, "nowhere")["partition-unknown"]
    assert "no partition `mian`" in finding["cause"] and finding["fix"] == "did you mean `main`?"
    yaml = (lab_suite.path / "cluster.yaml").read_text().splitlines()
    evidence = finding["evidence"][0]
    assert evidence["file"].endswith("cluster.yaml") and "mian" in yaml[evidence["line"] - 1]
    assert "invalid partition specified: mian" in finding["evidence"][-1]["text"]
    wide = findings(outcome, "wide")["too-many-nodes"]["cause"]
    assert wide == f"phase wide asks for {NODES + 1} nodes, but partition main has {NODES}"
    assert "3 GPUs per node" in findings(outcome, "gpus")["too-many-gpus"]["cause"]
    for words in ("02:00:00", "01:00:00"):
        assert words in findings(outcome, "long")["time-over-limit"]["cause"]
    assert list(findings(outcome, "twice")) == ["time-over-limit", "submission-refused"]
    ends = [event["phase"] for event in outcome.events("ended")]
    assert ends.index("good") == len(ends) - 1  # the others were reported before it ran


def test_usage_errors_are_reported_with_slurms_refusals(lab_suite: Suite) -> None:
    """One run reports mistakes in files and everything that Slurm refuses; nothing is left."""
    shared = lab_suite.path.with_name("shared")
    lab_suite.profile |= {"node_local": [str(lab_suite.path)], "shared_dir": str(shared)}
    lab_suite.profile["phases"]["nowhere"] = {"slurm": {"partition": "mian"}}
    lab_suite.phase("nowhere", script=IDLE)
    lab_suite.phase("wide", script=IDLE, nodes=NODES + 1)
    lab_suite.phase("good", script=IDLE, nodes=2, args={"output_dir": f"{lab_suite.path}/out"})
    outcome = lab_suite.run_apart()
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR, outcome.output
    for words in (
        f"output_dir={lab_suite.path}/out, under {lab_suite.path}",
        "no partition `mian`",
        "did you mean `main`?",
        f"phase wide asks for {NODES + 1} nodes, but partition main has {NODES}",
    ):
        assert words in outcome.output, (words, outcome.output)
    assert "preflight.txt" not in outcome.output  # no reference to a deleted file
    assert not shared.exists() and "good" not in lab_suite.slurm("squeue")


def test_evidence_is_a_line_of_slurm(lab_suite: Suite) -> None:
    """The file and line to which a finding points hold Slurm's output."""
    lab_suite.phase("wide", script=IDLE, nodes=NODES + 1)
    outcome = lab_suite.run_apart()
    evidence = findings(outcome, "wide")["too-many-nodes"]["evidence"][1]
    line = (
        (lab_suite.report / "phases" / "wide" / evidence["file"])
        .read_text()
        .splitlines()[evidence["line"] - 1]
    )
    assert line.startswith("PartitionName=main ") and evidence["text"] == line[:600]


def test_partition_that_is_down_is_reported(lab_suite: Suite) -> None:
    """Slurm would accept the job and never start it, so the phase is not submitted."""
    lab_suite.profile["slurm"]["partition"] = "high"
    lab_suite.phase("small", script=IDLE)
    high = "partitionname=high"
    with changed(lab_suite, (high, "State=DOWN"), (high, "State=UP")):
        outcome = lab_suite.run_apart()
    assert outcome.ret == 6 and submitted(outcome) == []
    assert "partition high is DOWN" in findings(outcome, "small")["partition-down"]["cause"]


def test_drained_nodes_are_named_if_too_few_are_left(lab_suite: Suite) -> None:
    """The phase that needs them has the outcome cluster_failed; each node has Slurm's reason, user
    and time. A phase for which enough nodes are left runs, and the start names the drained ones."""
    lab_suite.phase("wide", script=IDLE, nodes=NODES)
    lab_suite.phase("small", script=IDLE)
    drained = ("nodename=node1", "state=drain", "reason=ECC errors=12 State=IDLE")
    with changed(lab_suite, drained, ("nodename=node1", "state=resume")):
        outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    assert outcome.record()["verdict"] == "UNFIT"
    assert outcome.phase("wide")["outcome"] == "cluster_failed"
    (finding,) = outcome.phase("wide")["findings"]
    assert finding["id"] == "nodes-unavailable" and finding["hosts"] == ["node1"]
    for words in (
        f"only 2 of the {NODES} nodes",
        "that could run it take jobs",
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
        "node1", lambda: lab_suite.slurm("sinfo", "-h", "-n", "node1", "-o", "%T")[:5] == "idle\n"
    )


def test_healthy_run_reports_nothing(lab_suite: Suite) -> None:
    """No finding, no line; the record has Slurm's estimate of the start."""
    lab_suite.phase("small", script=IDLE)
    outcome = lab_suite.run_apart()
    assert outcome.ret == 0, outcome.output
    assert "preflight:" not in outcome.output
    assert outcome.phase("small")["estimated_start"] > 0


@pytest.mark.slow_lab
def test_accounts_qos_and_their_limits_are_checked(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """With accounting: near matches for an account and a QOS; limits of a QOS with numbers."""
    settings = lab.LabSettings(name="preflight-acct", nodes=2, accounting=True)
    with running_lab(settings) as running:
        suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
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
        suite.phase("account", script=IDLE)
        suite.phase("qos", script=IDLE)
        suite.phase("limits", script=IDLE, nodes=2)
        suite.phase("good", script=IDLE)
        outcome = suite.run_apart()
    assert outcome.ret == 6, outcome.output
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


@pytest.mark.slow_lab
def test_paths_with_any_character_reach_slurm_unharmed(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], own_lab: lab.Lab
) -> None:
    """Spaces, quotes, what a shell expands, other alphabets, and as long as a name may be: in the
    directories of the suite, the run and the report, and in arguments."""
    odd = """a b  'c' "d" `e` & ; # * ? {f} (g) <h> | ~ ! = , @ ünïcödé 日本語 -"""
    folder = tmp_path / f"{odd}{'x' * (200 - len(odd))}"
    folder.mkdir()
    suite = Suite(folder, leftovers[0])
    suite.use_slurm(own_lab.slurm_conf)
    program = folder / f"{odd} $HOME $(i).py"  # cluster.yaml expands it in shared_dir
    program.write_text(
        f"import runpy, sys\nassert sys.argv[1:] == ['--text', {odd!r}]\n"
        f"sys.argv[1:] = []\nrunpy.run_path({str(IDLE)!r}, run_name='__main__')\n"
    )
    for name, launcher in (("small", "none"), ("step", "srun")):
        suite.phase(name, script=str(program), launcher=launcher, nodes=2, args={"text": odd})
    outcome = suite.run_apart()
    assert outcome.ret == 0, outcome.output
    for name in ("small", "step"):
        phase = outcome.phase(name)
        assert (phase["outcome"], phase["args"]["text"]) == ("passed", odd)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    logs = suite.run_dir().phase("small").submitit
    assert sorted(path.name for path in logs.glob("*_log.out")) == [
        f"{outcome.phase('small')['job_id']}_0_log.out",
        f"{outcome.phase('small')['job_id']}_1_log.out",
    ]
