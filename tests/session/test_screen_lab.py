"""`--cluster-screen` on a real Slurm: each node has a verdict, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.support.harness import Suite
from tests.support.labs import running_lab
from tests.support.load import cpu_factor
from tests.support.screens import (
    change_driver,
    exclude_word,
    make_slow,
    on_node,
    read_lists,
    read_screen,
    stop_process,
    use_fake_gpus,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.lab

NODES = 8
LIMIT_S = 10
BEYOND_S = 40.0  # what a screen may take beyond the limit of a node that hangs
MOST_CPU_S = 0.1  # of a node, as fast as an idle one; other tests on its cores can only add to it
SCREENS = 3  # the fewest seconds of so many count


@pytest.fixture(scope="module")
def screened_lab() -> Iterator[lab.Lab]:
    with running_lab(lab.LabSettings(name="screen", nodes=NODES)) as running:
        yield running


@pytest.fixture
def screened(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], screened_lab: lab.Lab
) -> Suite:
    """A suite without a test file on that Slurm, whose nodes have fake GPUs."""
    suite = Suite(tmp_path, leftovers[0])
    suite.use_slurm(screened_lab.slurm_conf)
    use_fake_gpus(suite, tmp_path, LIMIT_S)
    states = "sinfo", "-h", "-N", "-o", "%T"
    wait_for("idle nodes", lambda: {*suite.slurm(*states).split()} == {"idle"} or None)
    return suite


def test_each_bad_node_is_named_and_no_other(
    screened: Suite, screened_lab: lab.Lab, tmp_path: Path
) -> None:
    """One node's process is stopped, one cannot use its directory for temporary files, one has
    another driver, one is slow, one is drained: each is named with its reason, in bounded time, and
    the next sbatch takes the word. A variable that only one node sets is shown, and fails none."""
    clean = list(screened_lab.nodes)
    stopped, unwritable, odd, slow, drained = (clean.pop(1) for _ in range(5))
    screened.profile["setup"] += [
        stop_process(stopped),
        on_node(unwritable, "export TMPDIR=/nowhere-at-all"),
        change_driver(odd, tmp_path),
        make_slow(slow, tmp_path),
        on_node(clean[0], "export NCCL_IB_TIMEOUT=7"),
    ]
    screened.slurm("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=fans")
    try:
        outcome = screened.run_apart("--cluster-screen")
    finally:
        screened.slurm("scontrol", "update", f"NodeName={drained}", "State=RESUME")
    assert outcome.ret == 1, outcome.output
    record = read_screen(outcome)
    assert record["verdict"] == "UNFIT"
    nodes = {node["node"]: node for node in record["screen"]["nodes"]}
    states = {name: node["state"] for name, node in nodes.items()}
    assert states == {
        **dict.fromkeys(clean, "passing"),
        **dict.fromkeys((unwritable, odd, slow), "failing"),
        stopped: "no answer",
        drained: "not screened",
    }, outcome.output
    reasons = {name: node["reason"].partition(":")[0] for name, node in nodes.items()}
    assert reasons[unwritable] == "tmp-not-writable" and reasons[odd] == "driver-differs"
    assert reasons[slow] == "cpu-slow" and f"within {LIMIT_S} s" in nodes[stopped]["reason"]
    assert "fans" in nodes[drained]["reason"] and nodes[drained]["group"] == "drained"
    bad = [name for name in screened_lab.nodes if name in (stopped, unwritable, odd, slow)]
    assert read_lists(outcome) == {"passing": clean, "failing": bad, "not_screened": [drained]}
    variable = "nodes differ: variable NCCL_IB_TIMEOUT: 7 on {}; not set on the other 5"
    assert variable.format(clean[0]) in outcome.output
    word = exclude_word(outcome)
    assert word == f"--exclude={','.join(bad)}"
    screened.slurm("sbatch", "--test-only", word, "--wrap", "true")
    run = screened.run_dir()
    journal = (run.root / "journal.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in journal]
    assert times[-1] - times[0] < LIMIT_S + BEYOND_S
    wait_for_no_job(screened)


def test_interrupted_screen_ends_its_jobs_and_reports_what_is_known(
    screened: Suite, screened_lab: lab.Lab
) -> None:
    """Ctrl-C while a node hangs: nothing is left in the queue, and the verdict is never FIT."""
    screened.profile["setup"].append(stop_process(screened_lab.nodes[1]))
    screened.profile["limits"]["screen_s"] = 600
    with screened.started("--cluster-screen") as running:
        others = len(screened_lab.nodes) - 1
        running.wait_for("the ends of the others", lambda: count_ends(screened) == others or None)
        running.interrupt()
        outcome = running.wait()
    assert outcome.ret == 2, outcome.output
    record = read_screen(outcome)
    assert record["verdict"] == "INCONCLUSIVE" and record["interrupted"]
    states = {
        node["node"]: node["group"] for node in record["screen"]["nodes"] if node.get("group")
    }
    assert states[screened_lab.nodes[1]] == "interrupted"
    wait_for_no_job(screened)


def count_ends(suite: Suite) -> int:
    """Of how many nodes the journal says how their screen ended."""
    texts = [path.read_text() for path in suite.shared.glob("*/journal.jsonl")]
    return sum(text.count('"event": "screened"') for text in texts)


def wait_for_no_job(suite: Suite) -> None:
    """Wait until Slurm has ended every job, also that of the stopped node."""
    wait_for("the end of all jobs", lambda: not suite.slurm("squeue", "-h").strip() or None)


def test_healthy_nodes_are_fit_also_under_xdist(screened: Suite, screened_lab: lab.Lab) -> None:
    """Nodes are chosen by a host list; each check is a case of its own in junit.xml; and a node
    gives no more than a tenth of a second of its CPU."""
    outcome = screened.run_apart("--cluster-screen", "-n", "2", "--cluster-nodes", "node[0-3]")
    assert outcome.ret == 0, outcome.output
    record = read_screen(outcome)
    nodes = record["screen"]["nodes"]
    assert [node["node"] for node in nodes] == list(screened_lab.nodes[:4])
    assert record["sentence"].startswith("FIT: 4 of 4 nodes passed")
    cases = [*ElementTree.parse(screened.reports / "latest-screen" / "junit.xml").iter("testcase")]
    checks = {case.get("name"): case for case in cases if case.get("classname") == "screen.node2"}
    assert {"answer", "gpus", "system", "driver", "cpu"} <= checks.keys()
    (reason,) = (skip.get("message") for skip in checks["rdma"].iter("skipped"))
    assert reason == "the node shows no RDMA port"
    fewest_s, most_s = min(node["cpu_s"] for node in nodes), MOST_CPU_S * cpu_factor()
    for _ in range(SCREENS - 1):
        if fewest_s >= most_s:
            again = read_screen(screened.run_apart("--cluster-screen"))["screen"]["nodes"]
            fewest_s = min(fewest_s, *(node["cpu_s"] for node in again))
    assert fewest_s < most_s


@pytest.mark.slow_lab
def test_user_who_may_have_two_jobs_gets_every_node_screened_and_every_phase_run(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """The others follow as the first ones end. An array would not help: Slurm counts its tasks."""
    with running_lab(lab.LabSettings(name="limits", nodes=5, accounting=True)) as running:
        suite = Suite(tmp_path, leftovers[0])
        suite.use_slurm(running.slurm_conf)
        use_fake_gpus(suite, tmp_path, LIMIT_S)
        with running.slurm_conf.open("a") as conf:
            conf.write("AccountingStorageEnforce=associations,limits\n")
        suite.slurm("scontrol", "reconfigure")
        user = pwd.getpwuid(os.getuid()).pw_name
        suite.slurm("sacctmgr", "-i", "modify", "user", user, "set", "MaxSubmitJobs=2")
        shown = ("scontrol", "show", "assoc_mgr", "flags=assoc")
        wait_for("the limit", lambda: "MaxSubmitJobs=2(" in suite.slurm(*shown) or None)
        array = subprocess.run(
            ["sbatch", "--array=0-4", "--wrap=true"],
            env=suite.environ(),
            capture_output=True,
            text=True,
        )
        assert "AssocMaxSubmitJobLimit" in array.stderr, array
        outcome = suite.run_apart("--cluster-screen")
        assert outcome.ret == 0, outcome.output
        assert read_screen(outcome)["sentence"] == "FIT for 5 of 5 nodes"
        for name in ("small", "p1", "p2", "p3", "p4"):
            suite.phase(name, file=f"test_{name}.py")
        outcome = suite.run_apart()
        assert outcome.ret == 0, outcome.output
        assert "each phase is submitted by itself" in outcome.output
        assert "; trying again until jobs of this run have ended" in outcome.output
