"""Who talked to whom, as the record has it: read from what NCCL logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke.report import topology as module
from pytest_clustersmoke.report.run_record import TopologyRecord
from pytest_clustersmoke.report.topology import build_topology
from tests.criteria.test_transport_sides import EXPECT, Job, swap
from tests.support.evidence import Evidence, make_profile


def of(folder: Path, job: Job, backend: str = "nccl") -> TopologyRecord:
    evidence = job.stage(folder, backend=backend)
    profile = make_profile(folder, expect={"small": EXPECT})
    result = replace(evidence.result(), expect=profile.expect["small"])
    found = build_topology(result)
    assert found is not None
    return found


def test_links_are_those_that_nccl_logged(tmp_path: Path) -> None:
    """A healthy ring of two nodes: P2P inside, InfiniBand between, nothing unexpected."""
    found = of(tmp_path, Job(2, 2))
    between = [link for link in found.links if not link.inside]
    assert {link.kind for link in between} == {"NET/IB/GDRDMA"}
    assert all(link.nics and link.where.startswith("nccl/") for link in between)
    assert not any(link.unexpected for link in found.links) and not found.note


def test_links_of_two_nodes_are_counted_together(tmp_path: Path) -> None:
    """Every link is in one group, by its nodes and its kind."""
    found = of(tmp_path, Job(2, 2))
    assert sum(group.links for group in found.groups) == len(found.links)
    assert {group.nodes for group in found.groups} == {(0, 0), (0, 1), (1, 1)}


def test_an_unexpected_link_comes_first_with_its_reason(tmp_path: Path) -> None:
    """TCP between nodes where InfiniBand was expected."""
    found = of(tmp_path, Job(2, 2, swap(Job(2, 2), {(1, 2): "NET/Socket/0"})))
    first = found.links[0]
    assert (first.source, first.destination) == (1, 2)
    assert first.unexpected == "expected NET/IB*" and first.kind == "NET/Socket"
    assert sum(group.unexpected for group in found.groups) == 1


def test_many_links_are_cut_and_the_groups_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note says how many there are; those unexpected stay."""
    monkeypatch.setattr(module, "MAX_LINKS", 2)
    found = of(tmp_path, Job(2, 2, swap(Job(2, 2), {(1, 2): "NET/Socket/0"})))
    assert len(found.links) == 2 and found.links[0].unexpected
    total = sum(group.links for group in found.groups)
    assert found.note == f"2 of {total} connections are listed"


def test_gloo_logs_no_links(tmp_path: Path) -> None:
    """The note names the backend and says why there are no links."""
    found = build_topology(Evidence(tmp_path, 2, 1).started("gloo").result())
    assert found is not None and found.backend == "gloo" and found.links == []
    assert "gloo" in found.note


def test_without_a_process_group_there_is_none(tmp_path: Path) -> None:
    """A job whose ranks never met has no topology."""
    assert build_topology(Evidence(tmp_path).result()) is None
