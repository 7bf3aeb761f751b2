"""Findings from the facts of nodes, by host and with the line that shows the problem; and nodes
that others never saw, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.diagnose.failure_evidence import FailureEvidence
from pytest_clustersmoke.diagnose.node_findings import check_warnings, find_failed_checks
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.outcome import judge_job
from tests.support.evidence import Evidence
from tests.support.node_facts import CUDA, node, port

LONG_AGO, ENDED = 1000.0, 1120.0


def write(folder: Path, *facts: Any, **results: dict[str, Any]) -> PhaseResult:
    """A phase whose nodes wrote these facts (None: no facts); `results`: `n1={...}`."""
    evidence = Evidence(folder, nodes=len(facts))
    spec = read_json(evidence.dir.spec) or {}
    write_json(evidence.dir.spec, {**spec, **CUDA, "nodes": len(facts)})
    for rank, fields in enumerate(facts):
        if fields is not None:
            evidence.dir.claim.touch()
            write_json(evidence.dir.node_facts(rank), {"time": LONG_AGO, **fields})
    for name, fields in results.items():
        rank = int(name[1:])
        evidence.dir.claim.touch()
        words = {"node": name, "ok": False, "ended": ENDED, **fields}
        write_json(evidence.dir.node_result(rank), words)
    return evidence.result()


def test_unhealthy_node_is_named_with_the_line_that_shows_it(tmp_path: Path) -> None:
    """The finding has the host, the problem, and its place in the node's facts."""
    result = write(tmp_path, node(0), node(1, cuda_visible_devices="0"))
    (finding,) = find_failed_checks(FailureEvidence(result))
    assert (finding.id, finding.hosts, finding.severity) == ("gpus-missing", ("n1",), "failure")
    assert finding.primary and finding.cause.startswith("n1: nvidia-smi lists 2 GPUs")
    (line,) = finding.evidence
    assert line.file == str(result.directory.node_facts(1)) and line.text.startswith('"gpus":')
    assert Path(line.file).read_text().splitlines()[line.line - 1].strip() == line.text


def test_all_hosts_are_reported_at_once(tmp_path: Path) -> None:
    """Not only the first host; hosts with the same problem together; warnings elsewhere."""
    full = {"dev_shm_free_bytes": 0}
    down = [port(0), port(1, "1: DOWN")]
    sick = [node(0, **full), node(1, gpus=[]), node(2, **full), node(3, rdma_ports=down)]
    result = write(tmp_path, *sick, node(4, open_files_limit=9))
    hosts = {finding.id: finding.hosts for finding in find_failed_checks(FailureEvidence(result))}
    assert hosts == {
        "gpus-missing": ("n1",),
        "shm-full": ("n0", "n2"),
        "rdma-port-down": ("n3",),
    }
    (warning,) = check_warnings(result)
    assert (warning.id, warning.hosts, warning.severity) == ("open-files-limit", ("n4",), "warning")
    assert not warning.primary


def test_node_that_failed_its_checks_is_diagnosed_by_them(tmp_path: Path) -> None:
    """What the launchers recorded only repeats these facts."""
    words = {"reason": "preflight", "why": "has no GPU"}
    aborted = {"reason": "aborted", "why": "n1: has no GPU"}
    result = write(tmp_path, node(0), node(1, gpus=[]), n0=aborted, n1=words)
    judgement = judge_job(result, None)
    assert judgement.outcome == "failed" and judgement.reason == "n1: has no GPU"
    (finding,) = diagnose(result, judgement)
    assert (finding.id, finding.hosts) == ("gpus-missing", ("n1",))


def test_claims_without_facts_decide_nothing(tmp_path: Path) -> None:
    """A node may claim anything about itself and others: checks are judged by facts."""
    claim = {"id": "gpus-missing", "hosts": ["n0"], "cause": "x", "severity": "failure"}
    words = {"reason": "preflight", "why": "n1 says so", "findings": [claim]}
    result = write(tmp_path, node(0), node(1), n1=words)
    assert find_failed_checks(FailureEvidence(result)) == []
    (finding, *_) = diagnose(result, judge_job(result, None))
    assert finding.id == "job-failed" and "n1 says so" in finding.cause


@pytest.mark.parametrize("facts", [node(1), None])
def test_node_that_cannot_reach_node_0(tmp_path: Path, facts: dict[str, Any] | None) -> None:
    """From its record of the rendezvous; it has a name even if its facts cannot be read."""
    result = write(tmp_path, node(0), facts, n1={})
    words = {"ok": False, "address": "10.0.0.1", "port": 29500, "error": "no route to host"}
    write_json(result.directory.node_meeting(1), {"names": {}, **words})
    (finding,) = find_failed_checks(FailureEvidence(result))
    assert (finding.id, finding.hosts) == ("master-unreachable", ("n1",))
    assert "10.0.0.1:29500" in finding.cause and "no route to host" in finding.cause
    assert finding.evidence[0].text == '"error": "no route to host"'


@pytest.mark.parametrize("facts", [{}, {"node": 7}, {"node": "\x1b[2J", "gpus": [[]]}, [], "x"])
def test_hostile_facts_are_not_a_finding(tmp_path: Path, facts: Any) -> None:
    """Nonsense raises nothing and yields no finding."""
    result = write(tmp_path, node(0), node(1))
    write_json(result.directory.node_facts(1), facts)
    write_json(result.directory.node_meeting(1), facts)
    result = Evidence.result(_reopened(result))
    assert find_failed_checks(FailureEvidence(result)) == check_warnings(result) == []


def _reopened(result: PhaseResult) -> Evidence:
    reopened = Evidence.__new__(Evidence)
    reopened.dir = result.directory
    return reopened


def unseen(nodes: Any = (1,)) -> dict[str, Any]:
    why = "n0 (h) waited for the facts of the other nodes and could not read them"
    return {"reason": "unseen", "why": why, "nodes": list(nodes)}


def the_unseen(result: PhaseResult) -> Finding:
    (finding,) = diagnose(result, judge_job(result, None))
    assert finding.id == "shared-directory-not-seen"
    return finding


def test_node_that_never_wrote(tmp_path: Path) -> None:
    """It is named alone: it did not start, or writes elsewhere."""
    finding = the_unseen(write(tmp_path, node(0), None, n0=unseen()))
    assert finding.hosts == ("node 1",) and finding.detail["cause"] == "never"
    assert finding.cause.startswith("n0 waited in vain for node 1, which never wrote a file")


def test_node_that_started_and_stopped(tmp_path: Path) -> None:
    """It wrote an event, but no facts: something hangs on it."""
    result = write(tmp_path, node(0), None, n0=unseen())
    EventWriter(result.directory.node_events(1)).write("claim", pid=1)
    assert the_unseen(result).detail["cause"] == "stopped"


def test_node_whose_files_others_never_saw(tmp_path: Path) -> None:
    """The files are visible here: the nodes do not share one directory; both are named."""
    finding = the_unseen(write(tmp_path, node(0), node(1), n0=unseen()))
    assert finding.detail["cause"] == "not-seen" and finding.hosts == ("n1", "n0")
    assert "never saw them" in finding.cause


def test_node_that_wrote_too_late(tmp_path: Path) -> None:
    """The others had given up by then."""
    late = node(1, time=ENDED + 60)
    finding = the_unseen(write(tmp_path, node(0), late, n0=unseen()))
    assert finding.detail["cause"] == "late" and finding.hosts == ("n1",)


def test_nodes_that_missed_the_same_node_share_a_finding(tmp_path: Path) -> None:
    """One finding per missing node, however many waited for it."""
    result = write(tmp_path, node(0), None, node(2), n0=unseen(), n2=unseen())
    assert the_unseen(result).detail == {
        "cause": "never",
        "missing": ["node 1"],
        "waited": ["n0", "n2"],
    }


@pytest.mark.parametrize("nodes", [None, 7, "1", [99], [-1], [True], [[]], [1e9]])
def test_invalid_node_ranks_are_ignored(tmp_path: Path, nodes: Any) -> None:
    """A node that names no valid node is judged by its other evidence."""
    words = {**unseen(), "nodes": nodes}
    assert find_failed_checks(FailureEvidence(write(tmp_path, node(0), None, n0=words))) == []
