"""`--cluster-avoid`: which nodes the jobs of a run must not get (Slurm's commands are fakes)."""

from __future__ import annotations

import time

import pytest

from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import SCREEN, NodeObservation
from tests.fakes.slurm import FakeSlurm
from tests.support import records
from tests.support.harness import Suite, lines_with

AVOID = "--cluster-avoid"
DOWN = "node-down: it went away"
NODES = [f"n{number}" for number in range(10)]


@pytest.fixture
def slurm(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Ten nodes in two partitions, and a history that speaks against n3 and n7."""
    fake = FakeSlurm(suite.path)
    for name, value in fake.environ.items():
        monkeypatch.setenv(name, value)
    fake.answers("sinfo", "".join(f"{node}|{'main' if node < 'n5' else 'b'}\n" for node in NODES))
    hardware = {"gpu": "A100", "device": "cpu", "gpus_per_node": 2}
    suite.cluster(backend="slurm", hardware=hardware, slurm={"cpus_per_task": 2})
    suite.phase()
    store(suite, "n3", "n7", "n99")
    return fake


def store(suite: Suite, *nodes: str) -> None:
    """Store a run of yesterday in which these nodes died."""
    made = records.run(phases=[], nodes=[], phases_chosen=[], cluster="one")
    made["begun"] = time.time() - DAY_S
    seen = [NodeObservation(node, SCREEN, "bad", DOWN, True) for node in nodes]
    seen += [NodeObservation(node, SCREEN, "good") for node in NODES if node not in nodes]
    history_store.store_run(records.parsed(made), suite.reports, observations=seen)


def plan(suite: Suite, *words: str) -> tuple[list[str], list[str]]:
    """What a dry run says of avoided nodes, and its lines with --exclude."""
    outcome = suite.run("--cluster-dry-run", *words)
    assert outcome.ret == 0
    said = [line for line in outcome.outlines if line.startswith(("avoiding ", AVOID))]
    return said, lines_with(outcome, "#SBATCH --exclude")


def test_jobs_get_none_of_the_nodes(suite: Suite, slurm: FakeSlurm) -> None:
    """Those that sinfo lists, after the profile's own; the header has each with its reason.
    Without the option Slurm is not asked."""
    assert plan(suite) == ([], [])
    assert slurm.calls() == []
    said = [f"avoiding n3: {DOWN}", f"avoiding n7: {DOWN}"]
    assert plan(suite, AVOID) == (said, ["#SBATCH --exclude=n3,n7"])
    suite.profile["slurm"]["exclude"] = "n1,n[4-5]"
    assert plan(suite, AVOID)[1] == ["#SBATCH --exclude='n1,n[4-5],n3,n7'"]
    assert plan(suite)[1] == ["#SBATCH --exclude='n1,n[4-5]'"]


def test_the_profiles_partition_is_what_counts(suite: Suite, slurm: FakeSlurm) -> None:
    """Its nodes, and a fifth of them at most."""
    suite.profile["slurm"]["partition"] = "main"
    assert plan(suite, AVOID)[1] == ["#SBATCH --exclude=n3"]
    store(suite, "n1")
    said, excluded = plan(suite, AVOID)
    assert excluded == []
    assert said == [
        f"{AVOID}: no node is avoided: the history speaks against 2 nodes of 5 of partition main, "
        "more than the 1 that may be avoided, so a test or setting may be to blame: "
        f"n1 ({DOWN}), n3 ({DOWN})"
    ]


def test_what_cannot_be_known_avoids_nothing(suite: Suite, slurm: FakeSlurm) -> None:
    """The header says why: Slurm does not answer, it knows none of the nodes, the history is
    another program's, or there is none."""
    slurm.answers("sinfo", "n1|main\n")
    expected = "the history speaks only against nodes that sinfo does not list here"
    assert plan(suite, AVOID) == ([f"{AVOID}: no node is avoided: {expected}"], [])
    slurm.answers("sinfo", err="sinfo: error: no controller", rc=1)
    ((line,), excluded) = plan(suite, AVOID)
    assert "Slurm does not say which nodes it has: `sinfo" in line and excluded == []
    database = suite.reports / "history.db"
    database.write_text("notes " * 999)
    ((line,), excluded) = plan(suite, AVOID)
    assert "is damaged, or not a database" in line and excluded == []
    database.unlink()
    said = [f"{AVOID}: no node is avoided: there is no history in {suite.reports} yet"]
    assert plan(suite, AVOID) == (said, [])


@pytest.mark.parametrize("words", [(AVOID,), (AVOID, "--cluster-here")])
def test_other_backends_are_refused(suite: Suite, words: tuple[str, ...]) -> None:
    """Nothing keeps their jobs off a node."""
    suite.phase()
    (line,) = suite.refused(*words)
    assert line.startswith(f"{AVOID} with ")
    assert line.endswith(f"leave {AVOID} out")
