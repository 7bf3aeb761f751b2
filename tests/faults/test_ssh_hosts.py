"""Hosts without a scheduler that die or differ: each has a network, mounts and a /tmp of its own,
and a real SSH server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.watched_phase import WatchedPhase
from tests.support.harness import IDLE, Suite
from tests.support.labs import visible_folder
from tests.support.leftovers import none_left
from tests.support.ssh_servers import IsolatedHosts, isolated_hosts

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

SHORT = {"seconds": 1}
Leftovers = tuple[str, Callable[[], list[str]]]


@pytest.fixture
def folder() -> Iterator[Path]:
    with visible_folder() as path:
        yield path


@pytest.fixture
def marked() -> Iterator[Leftovers]:
    with none_left() as marked:
        yield marked


@pytest.fixture
def hosts(folder: Path, marked: Leftovers) -> Iterator[IsolatedHosts]:
    with isolated_hosts(folder, marked[0], 3) as hosts:
        yield hosts


@pytest.fixture
def suite_on_hosts(folder: Path, marked: Leftovers, hosts: IsolatedHosts) -> Suite:
    """An empty suite on three hosts."""
    suite = Suite(folder, marked[0])
    suite.profile |= hosts.servers.profile()
    suite.profile["phases"] = {}
    return suite


def processes_of(phase: WatchedPhase, node: int) -> list[int]:
    """All processes of one node of a phase."""
    word = f"CLUSTERSMOKE_HOST_JOB={phase.suite.run_dir().root.name}/{phase.name}/{node}@"
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_host_that_dies_is_named(suite_on_hosts: Suite, hosts: IsolatedHosts) -> None:
    """A host loses its SSH server, its processes and its network at once: its phase has failed
    with the cluster, is ended on the other host, and the next phase runs on hosts that live. One
    that needs all hosts is given up as well."""
    phase = WatchedPhase.idle(suite_on_hosts, "first", nodes=2)
    suite_on_hosts.phase("second", script=IDLE, args=SHORT, nodes=2)
    suite_on_hosts.phase("wide", script=IDLE, args=SHORT, nodes=3)

    def die() -> None:
        for pid in processes_of(phase, 1):
            os.kill(pid, signal.SIGKILL)
        hosts.run("node1", "ip link set dev eth0 down")
        hosts.by_name["node1"].kill()

    with suite_on_hosts.started() as running:
        phase.wait()
        phase.strike(die)
        outcome = running.wait(180)
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("first")["outcome"] == "cluster_failed"
    address = hosts.by_name["node1"].address
    finding = outcome.finding("first")
    assert (finding["id"], finding["hosts"]) == ("host-lost", [address])
    assert f"{address} did not answer for" in finding["cause"]
    assert phase.seen_after_s() < 90
    assert outcome.phase("second")["outcome"] == "passed"
    assert address not in {node.name for node in outcome.evidence("second").nodes}
    assert outcome.phase("wide")["outcome"] == "cluster_failed"
    assert outcome.finding("wide")["id"] == "host-lost"
    assert processes_of(phase, 0) == []


def test_host_that_is_away_for_a_while_changes_nothing(
    suite_on_hosts: Suite, hosts: IsolatedHosts
) -> None:
    """Its SSH server dies and comes back: the phase goes on, and its result is right."""
    suite_on_hosts.phase("small", script=IDLE, nodes=2, args={"seconds": 8})
    phase = WatchedPhase(suite_on_hosts, "small", 2)
    server = hosts.by_name["node1"]
    with suite_on_hosts.started() as running:
        phase.wait()
        phase.strike(server.kill)
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    assert outcome.phase("small")["outcome"] == "passed"
    assert outcome.evidence("small").ranks_done == 2


def test_run_that_cannot_reach_any_host_is_inconclusive(
    suite_on_hosts: Suite, hosts: IsolatedHosts
) -> None:
    """No host answers any more: this machine may be at fault, so the phase is lost, not failed."""
    phase = WatchedPhase.idle(suite_on_hosts, "small", nodes=2)
    with suite_on_hosts.started() as running:
        phase.wait()
        for server in hosts.by_name.values():
            phase.strike(server.kill)
        outcome = running.wait(180)
    for node in (0, 1):
        for pid in processes_of(phase, node):
            os.kill(pid, signal.SIGKILL)
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("small")["outcome"] == "lost"
    finding = outcome.finding("small")
    assert finding["id"] == "hosts-silent" or "no host of the profile answers" in finding["cause"]


def test_hosts_that_differ_are_left_out(suite_on_hosts: Suite, hosts: IsolatedHosts) -> None:
    """One sees another directory, one is down: a phase of one node runs on the third, and a phase
    of two never does; all that is wrong is said at once."""
    shared = suite_on_hosts.shared
    shared.mkdir(mode=0o700)
    hosts.run("node0", f"mount -t tmpfs tmpfs {shared}")
    hosts.by_name["node1"].kill()
    suite_on_hosts.phase("small", script=IDLE, args=SHORT)
    suite_on_hosts.phase("wide", script=IDLE, args=SHORT, nodes=2)
    outcome = suite_on_hosts.run_apart()
    assert outcome.ret == 6, outcome.output
    assert [node.name for node in outcome.evidence("small").nodes] == [
        hosts.by_name["node2"].address
    ]
    wide = outcome.phase("wide")
    assert wide["outcome"] == "never_ran"
    found = {finding["id"]: finding["hosts"] for finding in wide["findings"]}
    assert found == {
        "shared-directory-not-seen": [hosts.by_name["node0"].address],
        "host-unreachable": [hosts.by_name["node1"].address],
    }


def test_hosts_that_are_down_are_a_failure_of_the_cluster(
    suite_on_hosts: Suite, hosts: IsolatedHosts
) -> None:
    """Nothing else is wrong, so the verdict is UNFIT."""
    hosts.run("node1", "ip link set dev eth0 down")
    suite_on_hosts.profile["ssh"]["connect_s"] = 2
    suite_on_hosts.phase("wide", script=IDLE, args=SHORT, nodes=3)
    outcome = suite_on_hosts.run_apart()
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("wide")["outcome"] == "cluster_failed"
    assert outcome.finding("wide")["id"] == "host-unreachable"
