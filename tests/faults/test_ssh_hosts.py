"""Hosts without a scheduler that die or differ: each has a network, mounts and a /tmp of its own,
and a real SSH server."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.watched_phase import WatchedPhase
from tests.rank.conftest import PROGRAMS as RANK_PROGRAMS
from tests.support.harness import IDLE, TRAINED, Suite, lines_with
from tests.support.labs import visible_folder
from tests.support.leftovers import none_left
from tests.support.ssh_servers import IsolatedHosts, isolated_hosts

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

SHORT = {"seconds": 1}
AWAY_S = 3.0  # shorter than a host may be silent
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BEHIND = """#!/bin/sh
exec {date} -d '-7 seconds' "$@"
"""
INTERPRETER = """#!/bin/sh
PYTHONPATH="{path}$PYTHONPATH" exec {python} "$@"
"""
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
    word = f"CLUSTERSMOKE_HOST_JOB={phase.suite.run_dir().run_id}/{phase.name}/{node}@"
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_processes_of(phase: WatchedPhase, node: int) -> None:
    for pid in processes_of(phase, node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def replace_file(hosts: IsolatedHosts, node: str, path: Path, text: str) -> None:
    """Have one host see another file at this path."""
    other = hosts.servers.folder / f"{node}-{path.name}"
    other.write_text(text)
    other.chmod(0o755)
    hosts.run(node, f"mount --bind {other} {path}")


def use_interpreter(suite: Suite) -> Path:
    """Have the profile name a Python of the suite's own, which a host may see otherwise."""
    python = suite.path / "python"
    python.write_text(INTERPRETER.format(python=sys.executable, path=""))
    python.chmod(0o755)
    suite.profile["python"] = str(python)
    return python


def test_host_that_dies_is_named(suite_on_hosts: Suite, hosts: IsolatedHosts) -> None:
    """A host loses its SSH server, its processes and its network at once: its phase has failed
    with the cluster, is ended on the other host, and the next phase runs on hosts that live. One
    that needs all hosts is given up as well."""
    phase = WatchedPhase.idle(suite_on_hosts, "first", nodes=2)
    suite_on_hosts.phase("second", script=IDLE, args=SHORT, nodes=2)
    suite_on_hosts.phase("wide", script=IDLE, args=SHORT, nodes=3)

    def die() -> None:
        kill_processes_of(phase, 1)
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
    """Its SSH server dies and comes back: the phase goes on, is logged in to again while it runs,
    and its result is right."""
    suite_on_hosts.phase("small", script=IDLE, nodes=2, args={"seconds": 20})
    phase = WatchedPhase(suite_on_hosts, "small", 2)
    server = hosts.by_name["node1"]
    with suite_on_hosts.started() as running:
        phase.wait()
        phase.strike(server.kill)
        assert server.logins == 1
        time.sleep(AWAY_S)
        assert server.logins == 1
        hosts.start_again("node1")
        running.wait_for("a second login", lambda: server.logins == 2)
        assert not phase.directory().node_result(1).exists()
        outcome = running.wait()
    assert server.logins == 2
    assert outcome.ret == 0, outcome.output
    assert outcome.phase("small")["outcome"] == "passed"
    assert outcome.evidence("small").ranks_done == 2


def test_host_that_was_restarted_is_named(suite_on_hosts: Suite, hosts: IsolatedHosts) -> None:
    """Its processes are gone, and it answers with another boot: the phase has failed with the
    cluster, and is ended on the other host."""
    phase = WatchedPhase.idle(suite_on_hosts, "small", nodes=2)

    def restart() -> None:
        replace_file(hosts, "node1", BOOT_ID, f"{uuid.uuid4()}\n")
        kill_processes_of(phase, 1)

    with suite_on_hosts.started() as running:
        phase.wait()
        phase.strike(restart)
        outcome = running.wait(180)
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("small")["outcome"] == "cluster_failed"
    address = hosts.by_name["node1"].address
    finding = outcome.finding("small")
    assert (finding["id"], finding["hosts"]) == ("host-lost", [address])
    assert f"{address} was restarted, while the phase ran" in finding["cause"]
    assert phase.seen_after_s() < 60
    assert processes_of(phase, 0) == []


def test_other_clock_and_interpreter_are_remarks(
    suite_on_hosts: Suite, hosts: IsolatedHosts
) -> None:
    """One host's clock is behind, another starts Python by another path: the run says so, and its
    phase runs on all hosts."""
    real = shutil.copy("/usr/bin/date", hosts.servers.folder / "date")
    replace_file(hosts, "node0", Path("/usr/bin/date"), BEHIND.format(date=real))
    other = Path(sys.executable).with_name("python3")
    assert other.exists() and other != Path(sys.executable)
    python = use_interpreter(suite_on_hosts)
    replace_file(hosts, "node1", python, INTERPRETER.format(python=other, path=""))
    suite_on_hosts.phase("small", script=IDLE, args=SHORT, nodes=3)
    outcome = suite_on_hosts.run_apart()
    assert outcome.ret == 0, outcome.output
    first, second, third = (hosts.by_name[f"node{node}"].address for node in range(3))
    (clock,) = lines_with(outcome, "the clock of ")
    (behind_s,) = re.findall(rf"the clock of {re.escape(first)} is (\S+) s behind", clock)
    assert float(behind_s) == pytest.approx(7.0, abs=1.0)
    (paths,) = lines_with(outcome, "the interpreter is not the same on all hosts: ")
    assert f"{sys.executable} on {first}" in paths and f"{other} on {second}" in paths
    assert third in paths.partition(str(other))[0]


def test_host_with_another_environment_is_left_out(
    suite_on_hosts: Suite, hosts: IsolatedHosts
) -> None:
    """Its interpreter finds another torch than those of the other two."""
    packages = hosts.servers.folder / "packages"
    (packages / "torch-0.0.1.dist-info").mkdir(parents=True)
    (packages / "torch-0.0.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 0.0.1\n")
    python = use_interpreter(suite_on_hosts)
    text = INTERPRETER.format(python=sys.executable, path=f"{packages}:")
    replace_file(hosts, "node2", python, text)
    suite_on_hosts.phase("small", script=IDLE, args=SHORT, nodes=2)
    suite_on_hosts.phase("wide", script=IDLE, args=SHORT, nodes=3)
    outcome = suite_on_hosts.run_apart()
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("small")["outcome"] == "passed"
    assert outcome.phase("wide")["outcome"] == "never_ran"
    address, finding = hosts.by_name["node2"].address, outcome.finding("wide")
    assert (finding["id"], finding["hosts"]) == ("versions-differ", [address])
    assert "torch 0.0.1" in finding["cause"]


def test_phase_runs_under_another_launcher(
    folder: Path, marked: Leftovers, hosts: IsolatedHosts
) -> None:
    """Accelerate starts two ranks on each of two hosts, which talk over their own network."""
    suite = Suite(folder, marked[0], real_torchrun=True)
    suite.profile |= hosts.servers.profile()
    sizes: dict[str, Any] = {"nodes": 2, "gpus_per_node": 2, "launcher": "accelerate"}
    args = {"steps": 6, "precision": "fp32"}
    suite.phase("small", TRAINED, script=RANK_PROGRAMS / "resumed.py", args=args, **sizes)
    outcome = suite.run_apart()
    assert outcome.ret == 0, outcome.output
    phase = outcome.evidence("small")
    assert phase.ranks_done == 4 and len(phase.losses) == 6
    for node in (0, 1):
        start = read_events(phase.directory.node_events(node)).last("launcher_start") or {}
        assert start["launcher"] == "accelerate"


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
        kill_processes_of(phase, node)
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
