"""How nodes meet through a shared directory that shows files late, half, or with nonsense in."""

from __future__ import annotations

import errno
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.node import reachability, rendezvous
from pytest_clustersmoke.node.abort_flag import Aborted, NodeFailed, raise_abort
from pytest_clustersmoke.node.checks import PreflightFailed
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.rendezvous import Meeting, NotSeen
from tests.support.launched import make_job

HERE = {"boot_id": "b", "network_namespace": "net:[1]", "interfaces": {}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than these tests need, and refusals are not asked for again."""
    monkeypatch.setattr(rendezvous, "_own_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)
    monkeypatch.setattr(rendezvous, "OTHERS_S", 0.5)
    monkeypatch.setattr(reachability, "REFUSED_S", 0.1)


def node_zero(folder: Path, *others: Any) -> NodeJob:
    """Node 0 of some, with the facts of all in place."""
    job = make_job(folder, nodes=1 + len(others))
    for node, facts in enumerate([HERE, *others]):
        write_json(job.dir.node_facts(node), facts)
    return job


def meet(job: NodeJob, limit_s: float = 30) -> Meeting:
    """This node's part of the meeting, from its own look at the facts on."""
    deadline = time.monotonic() + limit_s
    return rendezvous.meet(job, rendezvous.facts_of_all(job, deadline), deadline)


def meet_all(job: NodeJob) -> list[Any]:
    """What each node's part comes to: its meeting, or what it raised."""

    def part(rank: int) -> Any:
        threading.current_thread().name = f"node {rank}"
        try:
            return meet(NodeJob(job.spec, rank, f"n{rank}"))
        except NodeFailed as error:
            raise_abort(NodeJob(job.spec, rank, f"n{rank}"), "preflight", str(error))
            return error
        except Aborted as error:
            return error

    with ThreadPoolExecutor(job.nodes) as pool:
        return list(pool.map(part, range(job.nodes)))


def test_virtual_nodes_meet_on_loopback(tmp_path: Path) -> None:
    """Nodes with one kernel and one network stack are one host; all read the same meeting, and
    node 0 alone holds its port."""
    meetings = meet_all(node_zero(tmp_path, HERE, HERE))
    assert meetings == [meetings[0]] * 3
    first = meetings[0]
    assert first.one_host and first.address == "127.0.0.1" and first.port > 0
    assert [one.hold is not None for one in meetings] == [True, False, False]
    first.hold.close()


def test_nodes_tell_of_their_clocks(tmp_path: Path) -> None:
    """Each node but node 0 measures its clock against node 0's."""
    meetings = meet_all(node_zero(tmp_path, {**HERE, "boot_id": "other"}))
    meetings[0].hold.close()
    assert meetings[1].one_host is False
    zero, one = (read_json(tmp_path / f"nodes/000{node}/meeting.json") or {} for node in range(2))
    assert abs(one["clock"]["offset_s"]) <= one["clock"]["error_s"] + 0.01 and "clock" not in zero


def test_a_node_that_cannot_reach_node_0_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says where it wanted to go and what came of it; node 0 tells of it, too; nobody hangs."""
    real = socket.create_connection

    def connect(*words: Any, **more: Any) -> Any:
        if threading.current_thread().name == "node 2":
            raise OSError(errno.EHOSTUNREACH, "x")
        return real(*words, **more)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(reachability, "RETRY_S", 0.05)
    zero, one, two = meet_all(node_zero(tmp_path, HERE, HERE))
    assert isinstance(zero, PreflightFailed | Aborted) and isinstance(one, Aborted)
    assert isinstance(two, PreflightFailed)
    (check,) = two.checks
    assert (check.id, check.nodes) == ("master-unreachable", (2,))
    assert "127.0.0.1:" in check.what and check.what.endswith("no route to host")


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
    meetings = meet_all(job)
    meetings[0].hold.close()
    assert {job.dir.node_facts(0), job.dir.node_facts(1), job.dir.rendezvous} <= looked


@pytest.mark.parametrize("text", ["", '{"boot_id": ', "[]", "[" * 100_000])
def test_a_file_that_stays_unreadable_is_named(tmp_path: Path, text: str) -> None:
    """At the limit the node fails, and says which file of which node it could not read."""
    job = node_zero(tmp_path, HERE)
    job.dir.node_facts(1).write_text(text)
    with pytest.raises(NotSeen, match=r"could not read nodes/0001/facts\.json") as failed:
        meet(job, limit_s=0.05)
    assert failed.value.nodes == [1]


def test_a_meeting_that_is_not_seen_is_node_0s(tmp_path: Path) -> None:
    """A node that sees all facts and never node 0's word names node 0."""
    job = node_zero(tmp_path, HERE)
    with pytest.raises(NotSeen, match=r"rendezvous\.json") as failed:
        meet(NodeJob(job.spec, 1, "n1"), limit_s=0.05)
    assert failed.value.nodes == [0]


def test_a_wait_ends_with_the_flag(tmp_path: Path) -> None:
    """A node that waits for another's facts ends at once when the phase is aborted."""
    job = make_job(tmp_path, nodes=2)
    raise_abort(NodeJob(job.spec, 1, "n1"), "node", "no driver")
    with pytest.raises(Aborted, match="n1: no driver"):
        meet(job)


def test_node_0_does_not_wait_for_a_node_that_has_ended(tmp_path: Path) -> None:
    """With the flag up it ends, though a node never came."""
    job = node_zero(tmp_path, HERE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, job)
        while not job.dir.rendezvous.exists():
            assert not waiting.done()
        raise_abort(NodeJob(job.spec, 1, "n1"), "launcher", "killed")
        with pytest.raises(Aborted, match="n1: killed"):
            waiting.result(30)


def test_a_node_that_never_comes_is_named(tmp_path: Path) -> None:
    """Where there is neither a word of it nor the flag, node 0 says so at the limit."""
    job = node_zero(tmp_path, {**HERE, "node": "gpu7"})
    with pytest.raises(NodeFailed, match=r"gpu7 never connected to node 0 at 127\.0\.0\.1:"):
        meet(job, limit_s=0.3)


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
def test_nodes_that_differ_are_not_one_host(other: Any) -> None:
    """Another kernel, another network stack, or facts of another shape: each is a host apart."""
    assert rendezvous._on_one_host([HERE, other]) is False


@pytest.mark.parametrize("unknown", ["boot_id", "network_namespace"])
def test_what_is_unknown_of_all_nodes_is_not_shared(unknown: str) -> None:
    """Hosts that cannot tell their kernel or network stack are never taken for one."""
    facts = [{**HERE, unknown: None}] * 2
    assert rendezvous._on_one_host(facts) is False


@pytest.mark.parametrize(
    "published",
    [
        {},
        {"address": None, "port": 5, "one_host": True, "token": "t"},
        {"address": "a", "port": "5", "one_host": True, "token": "t"},
        {"address": "a", "port": 5, "one_host": True},
    ],
)
def test_a_meeting_of_another_shape_fails_the_node(tmp_path: Path, published: Any) -> None:
    """It is named with what it holds, and with what was expected."""
    job = node_zero(tmp_path, HERE)
    write_json(job.dir.rendezvous, published)
    with pytest.raises(NodeFailed, match="expected node 0's address, port, token and one_host"):
        meet(NodeJob(job.spec, 1, "n1"))
