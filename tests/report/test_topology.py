"""The topology in the record: the links between ranks, read from NCCL's logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_record import TopologyRecord
from pytest_clustersmoke.report import topology as module
from pytest_clustersmoke.report.topology import build_topology
from tests.support.evidence import Evidence, make_profile
from tests.support.nccl_phase import EXPECT, Job, swap


def topology_of(folder: Path, job: Job, backend: str = "nccl") -> TopologyRecord:
    evidence = job.stage(folder, backend=backend)
    profile = make_profile(folder, expect={"small": EXPECT})
    result = replace(evidence.result(), expect=profile.expect["small"])
    topology = build_topology(result)
    assert topology is not None
    return topology


def test_links_are_read_from_nccl_logs(tmp_path: Path) -> None:
    """A healthy ring over two nodes: P2P inside, InfiniBand between, nothing unexpected."""
    topology = topology_of(tmp_path, Job(2, 2))
    between = [link for link in topology.links if not link.inside]
    assert {link.kind for link in between} == {"NET/IB/GDRDMA"}
    assert all(link.nics and link.where.startswith("nccl/") for link in between)
    assert not any(link.unexpected for link in topology.links) and not topology.note


def test_links_are_grouped_by_pair_of_nodes(tmp_path: Path) -> None:
    """Every link is in one group, by its nodes and its kind."""
    topology = topology_of(tmp_path, Job(2, 2))
    assert sum(group.links for group in topology.groups) == len(topology.links)
    assert {group.nodes for group in topology.groups} == {(0, 0), (0, 1), (1, 1)}


def test_unexpected_link_comes_first_with_its_reason(tmp_path: Path) -> None:
    """One link between nodes uses sockets instead of InfiniBand."""
    topology = topology_of(tmp_path, Job(2, 2, swap(Job(2, 2), {(1, 2): "NET/Socket/0"})))
    first = topology.links[0]
    assert (first.source, first.destination) == (1, 2)
    assert first.unexpected == "expected NET/IB*" and first.kind == "NET/Socket"
    assert sum(group.unexpected for group in topology.groups) == 1


def test_listed_links_are_limited_but_groups_count_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note says how many there are; unexpected links are listed first."""
    monkeypatch.setattr(module, "MAX_LINKS", 2)
    topology = topology_of(tmp_path, Job(2, 2, swap(Job(2, 2), {(1, 2): "NET/Socket/0"})))
    assert len(topology.links) == 2 and topology.links[0].unexpected
    total = sum(group.links for group in topology.groups)
    assert topology.note == f"2 of {total} connections are listed"


def test_gloo_logs_no_links(tmp_path: Path) -> None:
    """The note names the backend and says why there are no links."""
    topology = build_topology(Evidence(tmp_path, 2, 1).started("gloo").result())
    assert topology is not None and topology.backend == "gloo" and topology.links == []
    assert "gloo" in topology.note


def test_job_without_a_process_group_has_no_topology(tmp_path: Path) -> None:
    """Its ranks never reported a backend."""
    assert build_topology(Evidence(tmp_path).result()) is None
