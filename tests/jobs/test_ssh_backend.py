"""Phases on hosts without a scheduler, run for real on SSH servers of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.jobs import ssh_backend
from pytest_clustersmoke.jobs.backend import prepare_jobs
from pytest_clustersmoke.jobs.outcome import HOST_LOST
from pytest_clustersmoke.jobs.ssh_backend import SshBackend
from pytest_clustersmoke.jobs.ssh_client import UNREACHABLE, HostUnavailable, SshHost
from tests.faults.watched_phase import WatchedPhase
from tests.support.evidence import make_phase, make_profile
from tests.support.harness import IDLE, RunningPytest, Suite
from tests.support.ssh_servers import Servers, ssh_servers
from tests.support.waiting import PATIENCE_S, wait_for

SHORT = {"seconds": 1}
# A busy machine may take as long to answer as one that is lost.
PATIENT = f"""
from pytest_clustersmoke.jobs import ssh_backend
from pytest_clustersmoke.preflight import host_check

ssh_backend.LOST_S = ssh_backend.LOST_WITH_FAILURE_S = {PATIENCE_S}
host_check.ANSWER_S = ssh_backend.ANSWER_S = ssh_backend.SILENT_S = {PATIENCE_S}
"""
Leftovers = tuple[str, Callable[[], list[str]]]


@pytest.fixture
def servers(tmp_path: Path, leftovers: Leftovers) -> Iterator[Servers]:
    with ssh_servers(tmp_path / "ssh", leftovers[0]) as servers:
        servers.start()
        servers.start()
        yield servers


@pytest.fixture
def ssh_suite(tmp_path: Path, leftovers: Leftovers, servers: Servers) -> Suite:
    """An empty suite on two hosts."""
    suite = Suite(tmp_path, leftovers[0])
    suite.profile["phases"] = {}
    suite.profile |= servers.profile()
    suite.profile["ssh"] |= {"connect_s": 120, "check_s": PATIENCE_S}
    (suite.path / "conftest.py").write_text(PATIENT)
    return suite


def masters(running: RunningPytest) -> list[psutil.Process]:
    """The connections of a run."""
    children = psutil.Process(running.pid).children()
    return [child for child in children if "ControlMaster=yes" in child.cmdline()]


def is_submitted(suite: Suite, phase: str) -> bool:
    events = read_events(suite.run_dir().journal).named("submitted")
    return phase in {event["phase"] for event in events}


def test_phases_have_hosts_of_their_own(ssh_suite: Suite, servers: Servers) -> None:
    """Two phases run at the same time on different hosts, until both do; the third waits for both
    hosts. Each node's process is recorded, and each host is logged in to once."""
    go = ssh_suite.path / "go"
    ssh_suite.phase("a", args={"wait_for": str(go)})
    ssh_suite.phase("b", args={"wait_for": str(go)})
    ssh_suite.phase("c", script=IDLE, args=SHORT, nodes=2)
    with ssh_suite.started() as running:
        for name in ("a", "b"):
            running.wait_for_ranks(name)
        running.wait_for("the start of c's wait", lambda: is_submitted(ssh_suite, "c"))
        waits = time.time()
        go.touch()
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    a, b, c = (outcome.phase(name) for name in ("a", "b", "c"))
    assert a["started"] < b["ended"] and b["started"] < a["ended"]
    names = [f"{server.address}:{server.port}" for server in servers.servers]
    nodes = {name: [node.name for node in outcome.evidence(name).nodes] for name in "abc"}
    assert nodes == {"a": names[:1], "b": names[1:], "c": names}
    both_ended = max(a["ended"], b["ended"])
    assert c["started"] >= both_ended > waits and c["queue_s"] >= both_ended - waits
    for node in (0, 1):
        record = ssh_suite.run_dir().phase("c").node(node) / "start" / "process"
        pid, start, boot = record.read_text().split()
        assert pid.isdigit() and start.isdigit() and len(boot) == 36
    for server in servers.servers:
        assert server.logins == 1


def test_host_with_a_slow_login_is_used(ssh_suite: Suite, servers: Servers) -> None:
    """Its login shell prints nothing for longer than the first try waits, as on a busy host."""
    slow = servers.start(['ForceCommand sleep 3; eval "$SSH_ORIGINAL_COMMAND"'])
    ssh_suite.profile["hosts"] = [slow.entry]
    ssh_suite.profile["ssh"]["connect_s"] = 1
    (ssh_suite.path / "conftest.py").write_text(f"{PATIENT}\nhost_check.ANSWER_S = 0\n")
    ssh_suite.phase("small", script=IDLE, args=SHORT)
    outcome = ssh_suite.run_apart()
    assert outcome.ret == 0, outcome.output
    assert outcome.phase("small")["outcome"] == "passed"


@pytest.mark.parametrize("connected", [True, False])
def test_host_is_lost_later_while_its_connection_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """A busy host answers no command in time, and is asked with more patience; a dead one has no
    connection."""
    limits: list[float] = []

    def run(host: SshHost, script: str, timeout_s: float) -> list[str]:
        limits.append(timeout_s)
        raise HostUnavailable(UNREACHABLE, "a command there did not end", silent=True)

    monkeypatch.setattr(SshHost, "run", run)
    monkeypatch.setattr(SshHost, "is_connected", connected)
    monkeypatch.setattr(ssh_backend, "LOST_S", 0.0)
    profile = make_profile(tmp_path, backend="ssh", hosts=["a"])
    phase = make_phase(profile)
    (job,) = prepare_jobs([phase], profile, [RunDir(tmp_path / "run").phase(phase.name)])
    backend = SshBackend(profile, os.environ)
    job_id = backend.submit(job)
    ended = [backend.states([job_id])[job_id].kind == "ended" for _ in range(2)]
    busy = [ssh_backend.ANSWER_S, ssh_backend.BUSY_S]
    assert (ended, limits) == (([False] * 2, busy) if connected else ([True] * 2, busy[:1]))


def test_host_that_only_misses_the_last_question_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part of the phase had ended; the phase is over since another host is lost."""
    profile = make_profile(tmp_path, backend="ssh", hosts=["a", "b", "c"])
    phase = make_phase(profile, nodes=2)
    (job,) = prepare_jobs([phase], profile, [RunDir(tmp_path / "run").phase(phase.name)])
    tags = {host: f"run/{phase.name}/{rank}@{host}" for rank, host in enumerate("ab")}
    silent: set[str] = set()
    answers = {host: f"started {tag} 1 2 boot" for host, tag in tags.items()}

    def run(host: SshHost, script: str, timeout_s: float) -> list[str]:
        if host.name in silent:
            raise HostUnavailable(UNREACHABLE, "a command there did not end", silent=True)
        return [answers.get(host.name, "")]

    monkeypatch.setattr(SshHost, "run", run)
    monkeypatch.setattr(SshHost, "is_connected", False)
    monkeypatch.setattr(ssh_backend, "LOST_WITH_FAILURE_S", 0.0)
    backend = SshBackend(profile, os.environ)
    job_id = backend.submit(job)
    assert backend.states([job_id])[job_id].kind == "running"
    silent.add("a")
    answers["b"] = f"result {tags['b']}"
    assert backend.states([job_id])[job_id].kind == "running"
    silent.add("b")
    monkeypatch.setattr(ssh_backend, "LOST_S", 0.0)
    state = backend.states([job_id])[job_id]
    assert state.raw == HOST_LOST
    details = backend.details(job_id, state, "")
    assert details is not None and [node.name for node in details.nodes] == ["a"]


def test_interrupt_ends_every_process(ssh_suite: Suite, leftovers: Leftovers) -> None:
    """Ctrl-C ends the phase that runs on both hosts, and the one that waits for them."""
    phase = WatchedPhase.idle(ssh_suite, "runs", nodes=2)
    ssh_suite.phase("waits", script=IDLE)
    with ssh_suite.started() as running:
        phase.wait()
        running.interrupt(signal.SIGINT)
        outcome = running.wait()
    assert outcome.ret == 2, outcome.output
    for name in ("runs", "waits"):
        assert outcome.phase(name)["outcome"] == "cancelled"
    assert outcome.phase("runs")["reason"] == "the run was interrupted"


@pytest.mark.slow
def test_phase_survives_its_connections(ssh_suite: Suite) -> None:
    """All connections are killed while it runs: it goes on, and its result is right."""
    ssh_suite.phase("small", script=IDLE, nodes=2, args={"seconds": 4})
    phase = WatchedPhase(ssh_suite, "small", 2)
    with ssh_suite.started() as running:
        phase.wait()
        killed = masters(running)
        for master in killed:
            master.kill()
        outcome = running.wait()
    assert len(killed) == 2
    assert outcome.ret == 0, outcome.output
    assert outcome.evidence("small").ranks_done == 2


@pytest.mark.slow
def test_killed_client_leaves_only_the_phase(ssh_suite: Suite, leftovers: Leftovers) -> None:
    """pytest is killed: its connections end, the phase goes on and ends by itself with its
    result, which the next command reports."""
    ssh_suite.phase("small", script=IDLE, nodes=2, args={"seconds": 4})
    phase = WatchedPhase(ssh_suite, "small", 2)
    with ssh_suite.started() as running:
        phase.wait()
        connections = masters(running)
        running.process.kill()
        running.process.wait()
    assert len(connections) == 2
    psutil.wait_procs(connections, timeout=5)
    assert not any(process.is_running() for process in connections)
    results = [phase.directory().node_result(node) for node in (0, 1)]
    wait_for("the phase's own end", lambda: all(path.exists() for path in results))
    assert all('"ok": true' in path.read_text() for path in results)
    wait_for("the end of its processes", lambda: len(sshd_free(leftovers[1]())) == 0)
    words = ["-m", "pytest_clustersmoke.cli", "history", "--report-dir", "reports"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ssh_suite.path, capture_output=True, text=True, check=True
    )
    run = ssh_suite.run_dir().run_id
    killed = f"run {run}: its controller was killed; its report is written now"
    assert killed in done.stderr, done.stderr
    record = read_json(ssh_suite.reports / run / "report.json") or {}
    assert record["verdict"] == "INCONCLUSIVE"
    assert [phase["outcome"] for phase in record["phases"]] == ["passed"]


def sshd_free(lines: list[str]) -> list[str]:
    """Processes other than the test's own servers."""
    return [line for line in lines if "sshd" not in line]


@pytest.mark.slow
def test_run_beside_a_killed_one_leaves_its_hosts_alone(ssh_suite: Suite) -> None:
    """A host that still runs a phase of another run is left out, and the finding names that run."""
    phase = WatchedPhase.idle(ssh_suite, "old")
    with ssh_suite.started() as running:
        phase.wait()
        first = ssh_suite.run_dir().run_id
        pid = int((phase.directory().node(0) / "start" / "process").read_text().split()[0])
        running.process.kill()
        running.process.wait()
    ssh_suite.profile["phases"] = {}
    (ssh_suite.path / "test_old.py").unlink()
    ssh_suite.phase("small", script=IDLE, args=SHORT)
    ssh_suite.phase("wide", script=IDLE, args=SHORT, nodes=2)
    outcome = ssh_suite.run_apart()
    os.kill(pid, signal.SIGTERM)
    assert outcome.phase("small")["outcome"] == "passed", outcome.output
    assert outcome.phase("wide")["outcome"] == "never_ran"
    finding = outcome.finding("wide")
    assert finding["id"] == "host-in-use"
    assert f"it still runs {first}/old, of another run" in finding["cause"]
    assert outcome.ret == 6


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["launcher", "node"])
def test_killed_launcher_fails_the_phase(ssh_suite: Suite, whom: str) -> None:
    """Its ranks are ended on its host, and the other node's by the flag."""
    phase = WatchedPhase.idle(ssh_suite, "small", nodes=2)
    with ssh_suite.started() as running:
        phase.wait()
        if whom == "launcher":
            phase.strike(lambda: os.kill(phase.pid("claim", 1), signal.SIGKILL))
        else:  # `timeout`, which is the leader of the node's session
            record = phase.directory().node(1) / "start" / "process"
            pid = int(record.read_text().split()[0])
            phase.strike(lambda: os.kill(pid, signal.SIGKILL))
        outcome = running.wait()
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("small")["outcome"] == "failed"
    assert "left no result" in outcome.phase("small")["reason"]
    assert phase.seen_after_s() < 30


@pytest.mark.slow
def test_wrong_setup_and_python_are_found_before_a_phase_starts(ssh_suite: Suite) -> None:
    ssh_suite.profile["setup"] = ["echo noise", "false"]
    ssh_suite.phase("small", script=IDLE, args=SHORT)
    outcome = ssh_suite.run_apart()
    assert outcome.phase("small")["outcome"] == "never_ran", outcome.output
    assert outcome.finding("small")["id"] == "setup-line-failed"
    assert "`false` failed with status 1" in outcome.finding("small")["cause"]
    ssh_suite.profile |= {"setup": [], "python": "/nonexistent/python"}
    outcome = ssh_suite.run_apart()
    assert outcome.finding("small")["id"] == "python-missing-on-node"
    assert "No such file or directory" in outcome.finding("small")["cause"]
    assert not [*ssh_suite.shared.glob("*/phases/small/nodes")]


@pytest.mark.slow
def test_dry_run_connects_to_nothing(ssh_suite: Suite, servers: Servers) -> None:
    """It shows the script of each node; no host is asked, and nothing is written."""
    ssh_suite.phase("small", script=IDLE, nodes=2)
    outcome = ssh_suite.run_apart("--cluster-dry-run")
    assert outcome.ret in (0, 5), outcome.output
    assert "Run over ssh on 2 hosts" in outcome.output
    assert "setsid timeout --foreground" in outcome.output
    assert not ssh_suite.shared.exists()
    for server in servers.servers:
        assert "Accepted" not in server.log.read_text()


def test_phase_of_more_nodes_than_hosts_is_refused(ssh_suite: Suite) -> None:
    ssh_suite.phase("small", script=IDLE, nodes=3)
    outcome = ssh_suite.run_apart()
    assert outcome.ret == 4
    assert "asks for 3 nodes" in outcome.output and "at most 2 (`hosts` of one)" in outcome.output


def test_missing_client_is_a_usage_error(ssh_suite: Suite, tmp_path: Path) -> None:
    ssh_suite.phase("small", script=IDLE)
    with ssh_suite.started(PATH=str(tmp_path)) as running:
        outcome = running.wait()
    assert outcome.ret == 4
    assert "no `ssh` on PATH" in outcome.output


@pytest.mark.slow
def test_host_with_another_key_is_left_out(ssh_suite: Suite, servers: Servers) -> None:
    """One host's key is not the known one: a phase of two nodes never runs, and says why; one of a
    single node runs on the other host, and the run says which host is left out."""
    lines = servers.known_hosts.read_text().splitlines()
    other = lines[1].split()[2]
    name, kind, _ = lines[0].split()
    servers.known_hosts.write_text(f"{name} {kind} {other}\n{lines[1]}\n")
    ssh_suite.phase("small", script=IDLE, args=SHORT)
    ssh_suite.phase("wide", script=IDLE, args=SHORT, nodes=2)
    outcome = ssh_suite.run_apart()
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("small")["outcome"] == "passed"
    assert outcome.phase("wide")["outcome"] == "never_ran"
    finding = outcome.finding("wide")
    bad = f"{servers.servers[0].address}:{servers.servers[0].port}"
    assert (finding["id"], finding["hosts"]) == ("host-key-refused", [bad])
    assert "Host key verification failed" in finding["cause"]
    assert any(line["file"].endswith("cluster.yaml") for line in finding["evidence"])
    assert f"{bad}: Host key verification failed.; it is left out" in outcome.output
