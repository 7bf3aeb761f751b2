"""How nodes meet through a shared directory that shows files late, half, or with nonsense in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.launch import NodeJob, rendezvous
from pytest_clustersmoke.launch.flag import Aborted, NodeFailed, raise_abort
from pytest_clustersmoke.rundir import read_json, write_json

from .launched import make_job

HERE = {"boot_id": "b", "network_namespace": "net:[1]", "interfaces": {}}


@pytest.fixture(autouse=True)
def own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are not resolved here."""
    monkeypatch.setattr(rendezvous, "_own_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)


def node_zero(folder: Path, other: Any) -> NodeJob:
    """Node 0 of two, with the facts of both in place."""
    job = make_job(folder, nodes=2)
    for node, facts in enumerate([HERE, other]):
        write_json(job.dir.node_facts(node), facts)
    return job


def test_virtual_nodes_meet_on_loopback(tmp_path: Path) -> None:
    """Two nodes with one kernel and one network stack are one host; both read the same meeting."""
    job = node_zero(tmp_path, HERE)
    meeting = rendezvous.meet(job, limit_s=5)
    assert meeting.one_host and meeting.address == "127.0.0.1" and meeting.port > 0
    other = NodeJob(job.spec, 1, "n1")
    assert rendezvous.meet(other, limit_s=5) == meeting


def test_files_that_cannot_be_read_yet_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale handle or a half view of each file is waited out."""
    looked: set[Path] = set()

    def read_late(path: Path) -> dict[str, Any] | None:
        if path in looked:
            return read_json(path)
        looked.add(path)
        return None

    monkeypatch.setattr(rendezvous, "read_json", read_late)
    job = node_zero(tmp_path, HERE)
    assert rendezvous.meet(job, limit_s=5).one_host
    assert looked == {job.dir.node_facts(0), job.dir.node_facts(1), job.dir.rendezvous}


@pytest.mark.parametrize("text", ["", '{"boot_id": ', "[]", "[" * 100_000])
def test_a_file_that_stays_unreadable_is_named(tmp_path: Path, text: str) -> None:
    """At the limit the node fails, and says which file it could not read."""
    job = node_zero(tmp_path, HERE)
    job.dir.node_facts(1).write_text(text)
    with pytest.raises(NodeFailed, match=r"never could read nodes/0001/facts\.json"):
        rendezvous.meet(job, limit_s=0.05)


def test_a_wait_ends_with_the_flag(tmp_path: Path) -> None:
    """A node that waits for another's facts ends at once when the phase is aborted."""
    job = make_job(tmp_path, nodes=2)
    raise_abort(NodeJob(job.spec, 1, "n1"), "node", "no driver")
    with pytest.raises(Aborted, match="n1: no driver"):
        rendezvous.meet(job, limit_s=60)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {**HERE, "boot_id": "other"},
        {**HERE, "network_namespace": "net:[2]"},
        {**HERE, "boot_id": ["b"]},
        {"boot_id": {}, "network_namespace": 7},
    ],
)
def test_nodes_that_differ_are_not_one_host(tmp_path: Path, other: Any) -> None:
    """Another kernel, another network stack, or facts of another shape: each is a host apart."""
    assert rendezvous.meet(node_zero(tmp_path, other), limit_s=5).one_host is False


@pytest.mark.parametrize("unknown", ["boot_id", "network_namespace"])
def test_what_is_unknown_of_all_nodes_is_not_shared(tmp_path: Path, unknown: str) -> None:
    """Hosts that cannot tell their kernel or network stack are never taken for one."""
    facts = [{**HERE, unknown: None}] * 2
    assert rendezvous._on_one_host(facts) is False


@pytest.mark.parametrize(
    "published",
    [{}, {"address": None, "port": 5, "one_host": True}, {"address": "a", "port": "5"}],
)
def test_a_meeting_of_another_shape_fails_the_node(tmp_path: Path, published: Any) -> None:
    """It is named with what it holds, and with what was expected."""
    job = node_zero(tmp_path, HERE)
    write_json(job.dir.rendezvous, published)
    with pytest.raises(NodeFailed, match="expected to hold node 0's address"):
        rendezvous.meet(NodeJob(job.spec, 1, "n1"), limit_s=5)
