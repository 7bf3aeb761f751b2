"""What a run says about its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pytest_clustersmoke
from pytest_clustersmoke.evidence.node_observation import (
    BY_SCHEDULER,
    CHECKS,
    DEFINITE,
    HARMLESS,
    NodeObservation,
)
from pytest_clustersmoke.report.node_evidence import observe_nodes
from tests.support import records
from tests.support.finding_ids import finding_ids
from tests.support.records import Record, facts, finding, phase

FAILED: dict[str, Any] = {"outcome": "failed", "scheduler_nodes": "node[0-3]"}


def observe(*phases: Record, **changes: Any) -> dict[str, NodeObservation]:
    """By node; the last one if a node has several."""
    run = records.parsed(records.run(*phases, **changes))
    return {seen.node: seen for seen in observe_nodes(run)}


def states(*phases: Record) -> dict[str, str]:
    return {node: seen.state for node, seen in observe(*phases).items()}


def accused(*findings: Record, nodes: int = 4, **changes: Any) -> set[str]:
    """The nodes that are bad in a failed phase with these findings."""
    failed = {**FAILED, "scheduler_nodes": f"node[0-{nodes - 1}]", **changes}
    found = states(phase(nodes=nodes, findings=list(findings), **failed))
    return {node for node, state in found.items() if state == "bad"}


def test_nodes_of_a_phase_that_passed_are_good() -> None:
    """Where a criterion failed, nobody knows which node is to blame."""
    assert states(phase()) == {f"node{number}": "good" for number in range(4)}
    criteria = {"test_x": {"result": "failed", "text": ""}}
    assert set(states(phase(criteria=criteria)).values()) == {"unknown"}
    assert set(states(phase(**FAILED)).values()) == {"unknown"}


def test_phases_with_staged_faults_say_nothing() -> None:
    """Nothing in them is about the cluster."""
    assert states(phase(fault="rank-killed", findings=[finding()], **FAILED)) == {}


def test_a_check_accuses_the_node_that_it_names() -> None:
    """With the id and the cause, and the others are unknown."""
    found = finding(id="tmp-full", cause="/tmp is full", hosts=["node2"], ranks=[])
    seen = observe(phase(findings=[found], **FAILED))
    assert {node: made.state for node, made in seen.items()} == {
        **dict.fromkeys(("node0", "node1", "node3"), "unknown"),
        "node2": "bad",
    }
    assert (seen["node2"].kind, seen["node2"].reason) == ("tmp-full", "tmp-full: /tmp is full")
    assert not seen["node2"].definite


def test_death_memory_errors_and_a_dead_link_are_definite() -> None:
    """As failures; a port that is down as a warning may be cabled differently."""
    for identity in ("node-down", "gpu-ecc-errors", "rdma-port-down"):
        found = finding(id=identity, hosts=["node1"])
        assert observe(phase(findings=[found], **FAILED))["node1"].definite, identity
    warned = finding(id="rdma-port-down", hosts=["node1"], severity="warning")
    assert not observe(phase(findings=[warned], **FAILED))["node1"].definite


@pytest.mark.parametrize(
    "mistake",
    [
        {"id": "argument-refused"},
        {"id": "rank-api-unused"},
        {"id": "world-size-mismatch"},
        {"id": "rank-error", "detail": {"signature": "rank_api_misuse"}},
    ],
)
def test_mistake_of_a_program_accuses_no_node(mistake: dict[str, Any]) -> None:
    """Its node is only where it was seen; another error of a rank may be the node's."""
    assert not accused(finding(hosts=["node1"], **mistake))
    assert accused(finding(id="rank-error", hosts=["node1"])) == {"node1"}


def test_links_that_went_down_on_several_nodes_are_not_definite() -> None:
    """Their switch may have gone down; on half of the nodes they accuse none."""
    downs = [
        finding(id="rdma-link-went-down", hosts=[f"node{n}"], severity="warning") for n in (1, 2)
    ]
    assert observe(phase(findings=downs[:1]))["node1"].definite
    seen = observe(phase(nodes=5, findings=downs))
    assert [(seen[n].state, seen[n].definite) for n in ("node1", "node2")] == [("bad", False)] * 2
    assert "bad" not in states(phase(findings=downs)).values()


def test_node_that_tests_isolated_is_accused() -> None:
    """Once is not enough for the list; an answer without a name accuses none."""
    found = finding(id="isolated", cause="isolation: node2", hosts=["node2"], severity="warning")
    seen = observe(phase(findings=[finding(hosts=["node2"]), found], **FAILED))["node2"]
    assert (seen.state, seen.kind, seen.definite) == ("bad", "isolated", False)
    unknown = {**found, "hosts": [], "primary": False}
    assert "bad" not in states(phase(findings=[unknown], **FAILED)).values()


def test_a_log_is_never_definite() -> None:
    """Any program can print what a log says."""
    found = finding(id="gpu_ecc_xid", hosts=["node1"])
    assert not observe(phase(findings=[found], **FAILED))["node1"].definite


def test_two_witnesses_accuse_neither() -> None:
    """A failure that names two nodes, drivers that differ between two, a node that cannot reach
    another."""
    assert accused(finding(id="rank-died", hosts=["node0", "node1"])) == set()
    both = [finding(id="driver-differs", hosts=[f"node{n}"], severity="warning") for n in (0, 1)]
    assert accused(*both, nodes=2) == set()
    assert accused(finding(id="master-unreachable", hosts=["node1"])) == set()


def test_what_most_nodes_have_is_a_setting() -> None:
    """A check that fails on half of the nodes or more; a minority is named."""
    small = [finding(id="shm-small", hosts=[f"node{n}"]) for n in range(4)]
    assert accused(*small) == set()
    assert accused(*small[:2]) == set()
    assert accused(*small[:2], nodes=5) == {"node0", "node1"}
    assert accused(small[0], nodes=1) == {"node0"}


def test_only_the_cause_accuses() -> None:
    """Findings that accompany a cause, notes, warnings of a job, and what follows from a check."""
    died = finding(id="rank-died", hosts=["node1"])
    assert accused(died) == {"node1"}
    assert accused({**died, "primary": False}) == set()
    assert accused({**died, "severity": "note"}) == set()
    assert accused({**died, "severity": "warning"}) == set()
    down = finding(id="node-down", hosts=["node3"])
    assert accused(died, down) == {"node3"}


def test_the_gravest_finding_is_the_reason() -> None:
    """Definite before a check, a check before a failure of the job."""
    found = [
        finding(id="rank-died", hosts=["node1"]),
        finding(id="gpu-ecc-errors", cause="GPU 3", hosts=["node1"]),
        finding(id="tmp-full", hosts=["node1"]),
    ]
    seen = observe(phase(findings=found, **FAILED))["node1"]
    assert (seen.reason, seen.definite) == ("gpu-ecc-errors: GPU 3", True)


def test_names_that_the_scheduler_did_not_give_are_left_out() -> None:
    """A job cannot accuse the node of another job, nor one that nobody knows; Slurm can."""
    nodes = [records.node(0), {"node_rank": 1, "node": "victim", "host": "victim"}]
    nodes.append({"node_rank": 2, "node": "node 2", "host": "unknown"})
    lie = finding(id="gpu-ecc-errors", hosts=["victim", "stranger", "node 2"])
    failed = phase(nodes=3, **{**FAILED, "scheduler_nodes": "node[0-2]"}, findings=[lie])
    failed["nodes"] = nodes
    assert states(failed) == {"node0": "unknown"}
    failed["findings"] = [finding(id="node-down", hosts=["node2"])]
    assert states(failed) == {"node0": "unknown", "node2": "bad"}


def test_a_host_is_its_node() -> None:
    """Findings may name a host by another name than Slurm's."""
    failed = phase(findings=[finding(id="tmp-full", hosts=["gpu7.example.org"])], **FAILED)
    failed["nodes"][1]["host"] = "gpu7.example.org"
    assert states(failed)["node1"] == "bad"


def test_a_slow_rank_accuses_its_node() -> None:
    """Also in a phase whose job passed; where half of the nodes are slow, none."""
    slow = phase()
    for rank in slow["ranks"][2:4]:
        rank["behind"] = True
    seen = observe(slow)["node1"]
    assert (seen.state, seen.reason) == ("bad", "slow-rank: ranks 2-3 fell behind the others")
    slow["ranks"][0]["behind"] = True
    assert "bad" not in states(slow).values()


def test_a_node_that_failed_in_an_earlier_job_is_bad() -> None:
    """Although the phase passed on other nodes; but no node, if the scheduler did not say which."""
    attempt = {
        "attempt": 1,
        "outcome": "cluster_failed",
        "reason": "NODE_FAIL",
        "job_id": "7",
        "nodes": ["node9"],
        "failed_nodes": ["node9"],
        "submitted": 1.0,
        "ended": 2.0,
        "queue_s": 0.0,
        "run_s": 1.0,
    }
    last = {**attempt, "attempt": 2, "outcome": "passed", "failed_nodes": []}
    seen = observe(phase(attempts=[attempt, last]))
    assert (seen["node9"].state, seen["node9"].definite) == ("bad", False)
    assert seen["node9"].reason == "node-down: it failed in job 7: NODE_FAIL"
    assert seen["node0"].state == "good"
    unnamed = {**attempt, "nodes": ["node8", "node9"], "failed_nodes": ["node8", "node9"]}
    assert "bad" not in states(phase(attempts=[unnamed, last])).values()
    twice = finding(id="node-drained", hosts=["node9"])
    assert "bad" not in states(phase(attempts=[attempt, last], findings=[twice])).values()


def test_boot_and_parts_come_from_the_facts() -> None:
    """The UUIDs only where the node saw all its GPUs: a job may get other ones each time."""
    gpus = [{"uuid": f"GPU-{n}", "driver_version": "550"} for n in (2, 1)]
    made = [facts(0, "p", boot_id="b0", gpus=gpus), facts(1, "p", gpus=gpus[:1])]
    hidden = [facts(0, "p", gpus=gpus, gpus_on_bus=4)]
    assert observe(phase("p", nodes=1), nodes=hidden)["node0"].parts == {"driver": "550"}
    seen = observe(phase("p", nodes=2), nodes=made)
    assert (seen["node0"].boot_id, seen["node0"].parts) == (
        "b0",
        {"GPU": "GPU-1, GPU-2", "driver": "550"},
    )
    assert (seen["node1"].boot_id, seen["node1"].parts) == ("", {"driver": "550"})


def test_kinds_are_findings_that_exist() -> None:
    """A misspelt id would never match."""
    known = finding_ids(Path(pytest_clustersmoke.__file__).parent, {"Finding", "build_finding"})
    slow = {"slow-rank"}  # ours: a criterion, which has no finding
    assert (CHECKS | DEFINITE | HARMLESS | BY_SCHEDULER) - slow <= known
    assert not HARMLESS & (CHECKS | BY_SCHEDULER)


def test_each_finding_of_a_node_check_says_what_it_means_for_the_node() -> None:
    """Otherwise it would count as a failure of the job."""
    checks = Path(pytest_clustersmoke.__file__).parent / "node" / "checks"
    found = finding_ids(checks, {"Finding", "build_finding"})
    assert "gpu-ecc-errors" in found
    assert found <= CHECKS | HARMLESS


def test_each_node_counts_by_the_severity_of_its_own_finding() -> None:
    """A port that is down as a failure on one node says nothing definite of the node where the same
    check only warns, in whatever order the findings come."""
    warned = finding(id="rdma-port-down", hosts=["node1"], severity="warning")
    failed = finding(id="rdma-port-down", hosts=["node2"])
    for found in ([warned, failed], [failed, warned]):
        seen = observe(phase(nodes=8, findings=found, **{**FAILED, "scheduler_nodes": "node[0-7]"}))
        assert seen["node2"].definite and seen["node2"].state == "bad"
        assert not seen["node1"].definite


def test_definite_evidence_counts_beside_warnings_of_many_nodes() -> None:
    """On all other nodes the check only warns, which is their setting; on one it failed."""
    warned = [
        finding(id="interface-down", hosts=[f"node{n}"], severity="warning") for n in (0, 1, 3)
    ]
    failed = finding(id="interface-down", hosts=["node2"])
    assert accused(*warned, failed) == {"node2"}
    assert accused(failed, *warned) == {"node2"}
