"""The rendezvous through a shared directory whose files appear late, in part, or malformed."""

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
from pytest_clustersmoke.node.rendezvous import Endpoint, NotSeen
from tests.support.launched import make_job
from tests.support.waiting import PATIENCE_S, wait_for

HERE = {"boot_id": "b", "network_namespace": "net:[1]", "interfaces": {}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits but that for the flag, and do not retry after a refusal."""
    monkeypatch.setattr(rendezvous, "_own_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(rendezvous, "POLL_S", 0.01)
    monkeypatch.setattr(rendezvous, "OTHERS_S", 0.5)
    monkeypatch.setattr(rendezvous, "FLAG_S", PATIENCE_S)
    monkeypatch.setattr(reachability, "REFUSED_S", 0.1)


def node_zero(folder: Path, *others: Any) -> NodeJob:
    """The job of node 0, with the facts of all nodes written."""
    job = make_job(folder, nodes=1 + len(others))
    for node, facts in enumerate([HERE, *others]):
        write_json(job.dir.node_facts(node), facts)
    return job


def meet(job: NodeJob, limit_s: float = 30) -> Endpoint:
    """This node's part of the rendezvous, once the facts are written."""
    deadline = time.monotonic() + limit_s
    return rendezvous.agree_on_endpoint(job, rendezvous.wait_for_facts(job, deadline), deadline)


def meet_all(job: NodeJob) -> list[Any]:
    """The result of each node's part: its endpoint, or the exception that it raised."""

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


def test_virtual_nodes_use_loopback(tmp_path: Path) -> None:
    """Nodes with one kernel and one network stack are one host; all have the same endpoint, and
    only node 0 holds its port."""
    endpoints = meet_all(node_zero(tmp_path, HERE, HERE))
    assert endpoints == [endpoints[0]] * 3
    first = endpoints[0]
    assert first.one_host and first.address == "127.0.0.1" and first.port > 0
    assert [endpoint.hold is not None for endpoint in endpoints] == [True, False, False]
    first.hold.close()


def test_nodes_record_their_clock_offsets(tmp_path: Path) -> None:
    """Each node except node 0 measures its clock against node 0's."""
    endpoints = meet_all(node_zero(tmp_path, {**HERE, "boot_id": "other"}))
    endpoints[0].hold.close()
    assert endpoints[1].one_host is False
    node_0, node_1 = (
        read_json(tmp_path / f"nodes/000{node}/meeting.json") or {} for node in range(2)
    )
    assert (
        abs(node_1["clock"]["offset_s"]) <= node_1["clock"]["error_s"] + 0.01
        and "clock" not in node_0
    )


def test_node_that_cannot_reach_node_0_ends_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports the address and the error, node 0 also reports it, and no node hangs."""
    real, job = socket.create_connection, node_zero(tmp_path, HERE, HERE)

    def connect(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name == "node 2":
            wait_for("the report of node 1, which has connected", job.dir.node_meeting(1).exists)
            raise OSError(errno.EHOSTUNREACH, "x")
        return real(*args, **options)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(reachability, "RETRY_S", 0.05)
    node_0, node_1, node_2 = meet_all(job)
    assert isinstance(node_0, PreflightFailed | Aborted) and isinstance(node_1, Aborted)
    assert isinstance(node_2, PreflightFailed)
    (found,) = node_2.findings
    assert (found.id, found.hosts) == ("master-unreachable", ("node 2",))
    assert "127.0.0.1:" in found.cause and found.cause.endswith("no route to host")


def test_files_that_cannot_be_read_yet_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale handle or a partial file is readable a moment later."""
    tried: set[Path] = set()

    def read_late(path: Path) -> dict[str, Any] | None:
        if path in tried:
            return read_json(path)
        tried.add(path)
        return None

    monkeypatch.setattr(rendezvous, "read_json", read_late)
    job = node_zero(tmp_path, HERE)
    endpoints = meet_all(job)
    endpoints[0].hold.close()
    assert {job.dir.node_facts(0), job.dir.node_facts(1), job.dir.rendezvous} <= tried


@pytest.mark.parametrize("text", ["", '{"boot_id": ', "[]", "[" * 100_000])
def test_file_that_stays_unreadable_is_named(tmp_path: Path, text: str) -> None:
    """At the limit the node fails, and names the file and node that it could not read."""
    job = node_zero(tmp_path, HERE)
    job.dir.node_facts(1).write_text(text)
    with pytest.raises(NotSeen, match=r"could not read nodes/0001/facts\.json") as failed:
        meet(job, limit_s=0.05)
    assert failed.value.nodes == [1]


def test_missing_rendezvous_file_names_node_0(tmp_path: Path) -> None:
    """A node that can read all facts, but not node 0's rendezvous file, names node 0."""
    job = node_zero(tmp_path, HERE)
    with pytest.raises(NotSeen, match=r"rendezvous\.json") as failed:
        meet(NodeJob(job.spec, 1, "n1"), limit_s=0.05)
    assert failed.value.nodes == [0]


def test_wait_ends_with_the_flag(tmp_path: Path) -> None:
    """A node that waits for another's facts ends at once when the phase is aborted."""
    job = make_job(tmp_path, nodes=2)
    raise_abort(NodeJob(job.spec, 1, "n1"), "node", "no driver")
    with pytest.raises(Aborted, match="n1: no driver"):
        meet(job)


def test_node_0_does_not_wait_for_a_node_that_has_ended(tmp_path: Path) -> None:
    """With the flag up it ends, although a node never connected."""
    job = node_zero(tmp_path, HERE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, job)
        while not job.dir.rendezvous.exists():
            assert not waiting.done()
        raise_abort(NodeJob(job.spec, 1, "n1"), "launcher", "killed")
        with pytest.raises(Aborted, match="n1: killed"):
            waiting.result(30)


def test_node_that_never_connects_is_named(tmp_path: Path) -> None:
    """Without a report from it and without the flag, node 0 names it at the limit."""
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
    """With another kernel, another network stack, or malformed facts, it is another host."""
    assert rendezvous._on_one_host([HERE, other]) is False


@pytest.mark.parametrize("unknown", ["boot_id", "network_namespace"])
def test_nodes_without_known_kernel_or_network_are_not_one_host(unknown: str) -> None:
    """An unknown value on all nodes is not a shared one."""
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
def test_malformed_rendezvous_file_fails_the_node(tmp_path: Path, published: Any) -> None:
    """The error has the file's content, and what was expected."""
    job = node_zero(tmp_path, HERE)
    write_json(job.dir.rendezvous, published)
    with pytest.raises(NodeFailed, match="expected node 0's address, port, token and one_host"):
        meet(NodeJob(job.spec, 1, "n1"))
