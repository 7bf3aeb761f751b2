"""64 nodes, each with a host name, a /tmp and a network of its own, are screened three times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from tests.support.harness import Suite
from tests.support.labs import LabHosts, running_lab
from tests.support.screens import (
    FILL_TMP,
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

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

NODES = 64
RUNS = 3
LIMIT_S = 20
BEYOND_S = 40.0
STOPPED, FULL, ODD, SLOW = "node7", "node20", "node33", "node46"
BAD = {
    STOPPED: "answer",
    FULL: "tmp-not-writable",
    ODD: "driver-differs",
    SLOW: "cpu-slow",
}
DEAD = "node55"  # its slurmd is stopped


@pytest.fixture
def isolated(lab_dir: Path) -> Iterator[lab.Lab]:
    settings = lab.LabSettings(
        name="screened", nodes=NODES, isolated=True, directory=lab_dir / "lab"
    )
    with running_lab(settings) as running:
        yield running


@pytest.fixture
def screened(
    lab_dir: Path, leftovers: tuple[str, Callable[[], list[str]]], isolated: lab.Lab
) -> Suite:
    """A suite on that Slurm: one node is stopped, one has a full /tmp, one has another driver, and
    one is slow."""
    folder = lab_dir / "suite"
    folder.mkdir()
    suite = Suite(folder, leftovers[0])
    suite.use_slurm(isolated.slurm_conf)
    use_fake_gpus(suite, folder, LIMIT_S)
    suite.profile["setup"] += [
        stop_process(STOPPED),
        on_node(FULL, "unset TMPDIR"),  # that of whoever runs the tests
        change_driver(ODD, folder),
        make_slow(SLOW, folder),
    ]
    LabHosts(isolated.name).run(FULL, FILL_TMP)
    return suite


def test_four_bad_nodes_of_64_are_named_and_60_are_clean(
    screened: Suite, isolated: lab.Lab, record_property: Callable[[str, object], None]
) -> None:
    """In each run, in bounded time; and the next sbatch takes the word. Then a slurmd is stopped:
    its node is not screened, by Slurm's word."""
    for _ in range(RUNS):
        nodes, seconds = screen(screened)
        named = {name: node["reason"].partition(":")[0] for name, node in nodes.items()}
        assert {name: why for name, why in named.items() if why} == BAD
        assert sum(node["state"] == "passing" for node in nodes.values()) == NODES - len(BAD)
        assert seconds < LIMIT_S + BEYOND_S
        cpu_s = sorted(node["cpu_s"] for node in nodes.values() if node.get("cpu_s"))
        record_property("seconds", seconds)
        record_property("cpu_s", cpu_s)
        print(f"{seconds:.1f} s; CPU of a node: {cpu_s[0]:.3f} to {cpu_s[-1]:.3f} s")
    daemon = LabHosts(isolated.name).slurmd(DEAD)
    daemon.suspend()
    try:
        wait_for("Slurm to miss the node", lambda: state_of(screened, DEAD) != "idle" or None, 60)
        nodes, _ = screen(screened)
    finally:
        daemon.resume()
    assert nodes[DEAD]["state"] == "not screened" and nodes[DEAD]["group"] == "down"
    assert {name for name, node in nodes.items() if node["state"] != "passing"} == {*BAD, DEAD}


def state_of(suite: Suite, node: str) -> str:
    return suite.slurm("sinfo", "-h", "-n", node, "-o", "%T").strip()


def screen(suite: Suite) -> tuple[dict[str, dict[str, Any]], float]:
    """Screen all nodes, once they are idle; returns each node's record, and how long it took."""
    wait_for("an idle cluster", lambda: not suite.slurm("squeue", "-h").strip() or None)
    outcome = suite.run_apart("--cluster-screen", patience_s=300)
    print(outcome.output[-3000:])
    assert outcome.ret == 1, outcome.output
    record = read_screen(outcome)
    failing = [node["node"] for node in record["screen"]["nodes"] if node["node"] in BAD]
    assert read_lists(outcome)["failing"] == failing
    suite.slurm("sbatch", "--test-only", exclude_word(outcome), "--wrap", "true")
    journal = outcome.files.reports / "latest-screen" / "journal.jsonl"
    times = [json.loads(line)["time"] for line in journal.read_text().splitlines()]
    nodes = {node["node"]: node for node in record["screen"]["nodes"]}
    return nodes, times[-1] - record["begun"]
