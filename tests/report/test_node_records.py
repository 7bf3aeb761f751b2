"""Facts of nodes in the record: each node once, bounded in size; and where nodes differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_directory import RunDir, write_json
from pytest_clustersmoke.evidence.run_record import FactsRecord
from pytest_clustersmoke.report.node_records import (
    MAX_FACT,
    UNKNOWN,
    FactsCollector,
    bound_facts,
    find_differences,
)
from tests.report.page_samples import page
from tests.support import records


def staged_phase(root: Path, phase: str, *facts: dict[str, Any]) -> PhaseResult:
    """A phase whose nodes reported these facts."""
    directory = RunDir(root).phase(phase)
    directory.root.mkdir(parents=True)
    write_json(directory.spec, {"phase": phase, "nodes": len(facts), "ranks_per_node": 0})
    for number, reported in enumerate(facts):
        directory.node(number).mkdir(parents=True)
        if reported:
            write_json(directory.node_facts(number), {"node_rank": number, **reported})
    return collect_phase(directory)


def gathered(*results: PhaseResult) -> list[FactsRecord]:
    collector = FactsCollector()
    for result in results:
        collector.add(result)
    return collector.records()


def test_node_has_its_facts_once(tmp_path: Path) -> None:
    """The facts are those of the last phase; facts that differed earlier are listed by phase."""
    packages = {"torch": "2.5.1"}
    first = {"node": "a", "host": "h", "time": 1.0, "packages": packages, "swap": 1}
    (record,) = gathered(
        staged_phase(tmp_path, "p", first),
        staged_phase(tmp_path, "q", {**first, "time": 2.0}),
        staged_phase(tmp_path, "r", {"node": "a", "host": "h", "time": 2.0, "packages": packages}),
    )
    assert record.model_dump() == {
        "node": "a",
        "host": "h",
        "phases": ["p", "q", "r"],
        "facts": {"time": 2.0, "packages": packages},
        "earlier": {"p": {"time": 1.0, "swap": 1}, "q": {"swap": 1}},
    }


def test_silent_node_keeps_earlier_facts(tmp_path: Path) -> None:
    """A phase without facts changes nothing; a node that never reported any has none."""
    here = {"node": "node 0", "host": "h", "kernel": "6"}
    first, second = gathered(
        staged_phase(tmp_path, "p", here, {}), staged_phase(tmp_path, "q", {}, {})
    )
    assert (first.phases, first.host, first.facts) == (["p"], "h", {"kernel": "6"})
    assert (second.node, second.phases, second.facts) == ("node 1", [], {})


def test_nodes_of_equal_name_stay_separate(tmp_path: Path) -> None:
    """Two nodes of one name in a phase have a record each."""
    twins = [{"node": "a", "kernel": "5"}, {"node": "a", "kernel": "6"}]
    result = staged_phase(tmp_path, "p", *twins)
    assert [record.facts for record in gathered(result)] == [{"kernel": "5"}, {"kernel": "6"}]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "facts",
    [
        {"deep": nested(700)},
        {"text": "x" * 10**7},
        {"x" * 10**6: 1},
        {"list": [0] * 10**6},
        {str(number): number for number in range(10**5)},
        {"wide": {str(n): {str(m): ["word" * 100] * 9 for m in range(99)} for n in range(99)}},
        {"number": 10**4000, "numbers": [10**4000] * 400},
    ],
)
def test_huge_facts_are_cut_with_a_note(facts: dict[str, Any]) -> None:
    """The size and depth of each fact and the size of all facts are bounded."""
    kept = json.dumps(bound_facts(facts), ensure_ascii=False)
    assert len(kept) < 500_000
    assert "…" in kept


def test_cut_fact_shows_its_size() -> None:
    """The note says how much was left out; other facts stay."""
    kept = bound_facts({"t": "x" * MAX_FACT, "d": nested(9), "kernel": "6"})
    cut = f"\u2026 {MAX_FACT + 3} characters"
    assert kept == {"t": cut, "d": "\u2026 nested deeper than 6", "kernel": "6"}
    many = bound_facts({str(number): "x" * 1000 for number in range(1000)})
    assert many["\u2026"] == f"\u2026 {1000 - (len(many) - 1)} more"


def test_usual_facts_are_not_cut() -> None:
    """The facts of a node with eight GPUs stay unchanged."""
    gpus = [{"name": "H100", "uuid": f"GPU-{n}", "remapped": {"pending": 0}} for n in range(8)]
    facts = {"gpus": gpus, "interfaces": {"ib0": {"ipv4": ["10.0.0.1"]}}, "x": None, "y": 1.5}
    assert bound_facts(facts) == facts


def differences(*nodes: records.Record) -> dict[str, dict[str, list[str]]]:
    listed = find_differences(FactsRecord.model_validate(node) for node in nodes)
    return {difference.fact: difference.values for difference in listed}


def test_equal_nodes_have_no_differences() -> None:
    """Nodes with the same facts, and one without facts, have no differences."""
    silent = {**records.facts(4), "facts": {}}
    assert differences(*map(records.facts, range(4)), silent) == {}


def test_odd_node_is_named_last() -> None:
    """The value that most nodes have comes first, with its nodes."""
    odd = records.facts(2, kernel="5.10.0")
    by_fact = differences(records.facts(0), records.facts(1), odd)
    assert by_fact == {"kernel": {"6.1.0": ["node0", "node1"], "5.10.0": ["node2"]}}
    assert list(by_fact["kernel"]) == ["6.1.0", "5.10.0"]


def test_packages_gpus_and_ports_are_compared() -> None:
    """A missing package, another driver, and a port at half its rate are differences."""
    ports = [{"hca": "mlx5_0", "rate": "400 Gb/sec"}]
    slow = [{"hca": "mlx5_0", "rate": "200 Gb/sec"}]
    gpus = [{"name": "NVIDIA H100", "driver_version": "535.1"}]
    first = records.facts(0, rdma_ports=ports)
    second = records.facts(1, rdma_ports=slow, gpus=gpus, packages={})
    by_fact = differences(first, second)
    assert by_fact["RDMA ports"] == {"mlx5_0 200 Gb/sec": ["node1"], "mlx5_0 400 Gb/sec": ["node0"]}
    assert by_fact["driver"] == {"535.1": ["node1"], "550.54.15": ["node0"]}
    assert by_fact["package torch"] == {"2.5.1": ["node0"], UNKNOWN: ["node1"]}


def test_power_caps_clocks_and_firmware_are_compared() -> None:
    """A GPU with a lower cap, and a card with old firmware; a fact that no node has is none."""
    gpu = {"name": "NVIDIA H100", "driver_version": "550.54.15", "power.limit": "700.00 W"}
    port = {"hca": "mlx5_0", "rate": "400 Gb/sec", "firmware": "28.39.1002"}
    usual = [records.facts(number, gpus=[gpu], rdma_ports=[port]) for number in range(3)]
    capped = {**gpu, "power.limit": "500.00 W"}
    old = {**port, "firmware": "28.33.4030"}
    by_fact = differences(*usual, records.facts(3, gpus=[gpu, capped], rdma_ports=[old]))
    most = ["node0", "node1", "node2"]
    assert by_fact == {
        "GPUs": {"1": most, "2": ["node3"]},
        "GPU power cap": {"700.00 W": most, "500.00 W, 700.00 W": ["node3"]},
        "RDMA firmware": {"28.39.1002": most, "28.33.4030": ["node3"]},
    }


def test_variables_are_compared() -> None:
    """A node that does not set one that the others set differs, too."""
    usual = [records.facts(number, variables={"NCCL_IB_HCA": "mlx5"}) for number in range(2)]
    odd = [records.facts(2, variables={}), records.facts(3, variables={"NCCL_IB_HCA": "mlx4"})]
    most = ["node0", "node1"]
    expected = {"mlx5": most, "mlx4": ["node3"], "not set": ["node2"]}
    assert differences(*usual, *odd) == {"variable NCCL_IB_HCA": expected}


def test_sizes_that_are_all_but_equal_do_not_differ() -> None:
    """Nodes of one kind differ by some pages; a missing module of memory is a difference."""
    sizes = [540 * 10**9 + number * 10**6 for number in range(4)]
    usual = [records.facts(number, memory_bytes=size) for number, size in enumerate(sizes)]
    assert differences(*usual) == {}
    by_fact = differences(*usual, records.facts(4, memory_bytes=480 * 10**9))
    assert [*by_fact] == ["memory_bytes"]
    most, odd = by_fact["memory_bytes"].values()
    assert most == [f"node{number}" for number in range(4)] and odd == ["node4"]


def test_hostile_facts_are_sanitized() -> None:
    """Facts of a wrong type raise no error, and the record has no escape sequences."""
    odd = records.facts(1, kernel="\x1b[2J", packages=["x"], gpus="many", rdma_ports=[1])
    by_fact = differences(records.facts(0), odd)
    assert all("\x1b" not in value for values in by_fact.values() for value in values)
    assert "kernel" in by_fact


def test_phase_that_never_started_has_no_nodes(tmp_path: Path) -> None:
    """Its job has none yet: they are no nodes of the cluster."""
    ran = staged_phase(tmp_path, "p", {"node": "a"}, {"node": "b"}, {"node": "c"})
    never = staged_phase(tmp_path, "q", {}, {})
    assert [record.node for record in gathered(ran, never)] == ["a", "b", "c"]


def test_page_counts_the_nodes_that_reported() -> None:
    """Nodes that reported nothing agree with nobody."""
    silent = [{**records.facts(number), "facts": {}} for number in (1, 2)]
    one = page(records.run(nodes=[records.facts(0, "p"), *silent]))
    assert "1 of 3 nodes reported." in one and "agree in every fact" not in one
    two = page(records.run(nodes=[records.facts(0, "p"), records.facts(3, "p"), *silent]))
    assert "2 of 4 nodes reported." in two
    assert "The 2 nodes that reported agree in every fact" in two
    every = page(records.run(nodes=[records.facts(0, "p"), records.facts(1, "p")]))
    assert "The 2 nodes agree in every fact" in every and "nodes reported" not in every
