"""A real Slurm takes the word of `clustersmoke exclude`, and phases avoid the same nodes."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.node_observation import SCREEN, NodeObservation
from tests.support import records
from tests.support.harness import IDLE, Suite

pytestmark = pytest.mark.lab

COMMAND = shlex.join([sys.executable, "-m", "pytest_clustersmoke.cli"])
DOWN = "node-down: it went away"


def exclude(suite: Suite, *words: str) -> str:
    """The shell's words for the command on this suite's history."""
    reports = ["--cluster", "one", "--report-dir", str(suite.reports)]
    return f"{COMMAND} exclude {shlex.join([*reports, *words])}"


def shell(suite: Suite, line: str) -> str:
    done = subprocess.run(
        ["sh", "-ec", line], env=suite.environ(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_next_job_takes_the_word_and_phases_avoid_the_node(
    lab_suite: Suite, tmp_path: Path
) -> None:
    """Without an entry the job may have every node; with one, sbatch takes the printed word, and
    neither that job nor a phase gets the node."""
    nodes = sorted({*lab_suite.slurm("sinfo", "-h", "-N", "-o", "%N").split()})
    bad = nodes[0]  # which a job of one node would get
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    ask = f"sbatch --parsable --output=/dev/null $({exclude(lab_suite)}) {shlex.quote(str(script))}"
    made = records.run(phases=[], nodes=[], phases_chosen=[], cluster="one", begun=time.time() - 60)
    for observations in ((), (NodeObservation(bad, SCREEN, "bad", DOWN, True),)):
        history_store.store_run(records.parsed(made), lab_suite.reports, observations=observations)
        job = shell(lab_suite, ask).strip()
        shown = lab_suite.slurm("scontrol", "-o", "show", "job", job)
        assert f" ExcNodeList={bad if observations else '(null)'} " in shown
    drain = shell(lab_suite, exclude(lab_suite, "--drain"))
    assert shlex.split(drain)[2:4] == [f"NodeName={bad}", "State=DRAIN"]
    assert "drain" not in lab_suite.slurm("sinfo", "-h", "-N", "-o", "%T", "-n", bad)
    lab_suite.phase("small", script=IDLE, args={"seconds": 0})
    outcome = lab_suite.run_apart("--cluster-avoid")
    assert outcome.ret == 0, outcome.output
    assert f"avoiding {bad}: {DOWN}" in outcome.output
    (node,) = outcome.phase("small")["nodes"]
    assert node["node"] in nodes[1:]
    record = outcome.record()
    assert (record["selection"], record["counts"]["avoided"]) == ("", [bad])
    assert record["sentence"].startswith("FIT")
    assert record["sentence"].endswith(f"; selected: all without {bad} (--cluster-avoid)")
    assert (lab_suite.reports / "metrics-one.prom").is_file(), "a whole run"
    shown = shell(lab_suite, f"{COMMAND} nodes --cluster one --report-dir {lab_suite.reports}")
    lines = {line.split()[0]: line for line in shown.splitlines()[3:]}
    assert lines.keys() == {bad, node["node"]}
    assert "node-down in the screen" in lines[bad]
