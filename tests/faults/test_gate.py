"""When a gate is proven, and what is missing where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.faults import FAULTS
from pytest_clustersmoke.faults.gate import (
    GREEN,
    NOT_STAGED,
    OTHER,
    PROVEN,
    Alone,
    Gate,
    Seen,
    judge,
)
from pytest_clustersmoke.report.verdict import ProofTally, RunTally, judge_proof
from tests.support.evidence import Evidence

FLIPPED, KILLED = FAULTS["gradient-flipped"], FAULTS["rank-killed"]
GRADIENTS, RELOAD = "test_gradients_are_in_sync", "test_reloaded_checkpoint_equals_the_saved"
HEALTHY = Alone("passed", "", {GRADIENTS: Seen("passed"), RELOAD: Seen("passed")})
RED = {
    GRADIENTS: Seen("failed", "gradients are not in sync on rank 1 (n0)"),
    RELOAD: Seen("passed"),
}
FOUND = {"id": "rank-died", "primary": True, "cause": "it died", "ranks": [1], "hosts": ["n0"]}


def staged_in(folder: Path, fault: str, ranks: tuple[int, ...] = (1,), **job: Any) -> PhaseResult:
    """Two ranks on one node, of which `ranks` staged the fault; `job` are keys of result.json."""
    evidence = Evidence(folder, 1, 2).started()
    spec = read_json(evidence.dir.spec) or {}
    write_json(evidence.dir.spec, {**spec, "fault": {"name": fault, "base": "small", "rank": 1}})
    for rank in ranks:
        evidence.rank(rank, ("staged", {"name": fault}))
    write_json(evidence.dir.result, {"outcome": "passed", **job})
    return evidence.result()


def judge_criteria(
    folder: Path,
    seen: dict[str, Seen] = RED,
    alone: Alone = HEALTHY,
    ranks: tuple[int, ...] = (1,),
    **job: Any,
) -> Gate:
    result = staged_in(folder, "gradient-flipped", ranks, **job)
    return judge(FLIPPED, "small", result, seen, alone, RunDir(folder))


def judge_job(folder: Path, staged_by: tuple[int, ...] = (1,), **changes: Any) -> Gate:
    findings = [{**FOUND, **changes}]
    result = staged_in(folder, "rank-killed", staged_by, outcome="failed", findings=findings)
    return judge(KILLED, "small", result, {}, None, RunDir(folder))


def test_gate_is_proven_if_only_its_criterion_fails_and_names_the_rank(tmp_path: Path) -> None:
    gate = judge_criteria(tmp_path)
    assert (gate.status, gate.reasons, gate.red) == (PROVEN, [], [GRADIENTS])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({RELOAD: Seen("failed", "lost")}, f"{RELOAD} failed, but passed with nothing staged"),
        ({RELOAD: Seen("skipped")}, f"{RELOAD} skipped, but passed with nothing staged"),
        (
            {GRADIENTS: Seen("failed", "not in sync on rank 0 (n0)")},
            f"{GRADIENTS} names ranks [0], expected rank 1 (n0)",
        ),
        ({GRADIENTS: Seen("failed", "not in sync")}, "names ranks []"),
        ({GRADIENTS: Seen("failed", "on rank 0 (n0), rank 1 (n0)")}, "names ranks [0, 1]"),
    ],
)
def test_other_failures_prove_nothing(
    tmp_path: Path, changed: dict[str, Seen], reason: str
) -> None:
    """The result of another criterion changed, or another rank is blamed."""
    gate = judge_criteria(tmp_path, {**RED, **changed})
    assert gate.status == OTHER and reason in gate.reasons[0]


def test_gate_that_stays_green_is_reported(tmp_path: Path) -> None:
    """The gate let the fault through."""
    gate = judge_criteria(tmp_path, {GRADIENTS: Seen("passed"), RELOAD: Seen("passed")})
    assert gate.status == GREEN and gate.reasons[0] == f"{GRADIENTS} stayed green"


def test_failure_with_nothing_staged_proves_nothing(tmp_path: Path) -> None:
    """The fault is not the cause of a criterion that failed without it."""
    before = {**HEALTHY.seen, GRADIENTS: Seen("failed", "worn")}
    gate = judge_criteria(tmp_path, alone=replace(HEALTHY, seen=before))
    assert gate.status == OTHER and "was failed with nothing staged: worn" in gate.reasons[0]


@pytest.mark.parametrize(("outcome", "status"), [("failed", OTHER), ("never_ran", NOT_STAGED)])
def test_unhealthy_phase_proves_nothing(tmp_path: Path, outcome: str, status: str) -> None:
    """It fails with nothing staged, or never ran, so its criteria say nothing about the fault."""
    gate = judge_criteria(tmp_path, alone=Alone(outcome, "why", {}))
    assert gate.status == status
    assert gate.reasons == [f"with nothing staged the phase is {outcome}: why"]


@pytest.mark.parametrize("ranks", [(), (0,), (0, 1)])
def test_fault_must_be_staged_on_its_rank_alone(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """Without an event `staged` of exactly that rank, nothing is proven."""
    for gate in (judge_criteria(tmp_path / "a", ranks=ranks), judge_job(tmp_path / "b", ranks)):
        assert gate.status == OTHER
        assert gate.reasons[0].startswith("the fault was to be staged on rank 1, and was on")


def test_failed_job_is_not_a_failed_criterion(tmp_path: Path) -> None:
    """The criterion should have failed, but the job ended before it could judge."""
    gate = judge_criteria(tmp_path, {}, outcome="failed", reason="it fell over")
    assert gate.status == GREEN and "the job failed, where a criterion had to" in gate.reasons[1]


def test_gate_is_proven_if_the_job_fails_with_the_right_finding(tmp_path: Path) -> None:
    """Its id, rank and host are those of the fault, and the seconds to it are known."""
    journal = EventWriter(tmp_path / "journal.jsonl")
    journal.write("ended", phase="small")
    gate = judge_job(tmp_path)
    assert (gate.status, gate.finding, gate.ranks, gate.hosts) == (PROVEN, "rank-died", [1], ["n0"])
    assert gate.seconds is not None and abs(gate.seconds) < 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "hang"}, "the finding is hang, expected rank-died"),
        ({"primary": False}, "the finding is none, expected rank-died"),
        ({"ranks": [0]}, "names ranks [0] and hosts ['n0'], expected rank 1 (n0)"),
        ({"ranks": [0, 1]}, "names ranks [0, 1]"),
        ({"hosts": ["n1"]}, "hosts ['n1'], expected rank 1 (n0)"),
    ],
)
def test_other_finding_proves_nothing(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """The job fails with another cause, or blames a victim."""
    gate = judge_job(tmp_path, **changes)
    assert gate.status == OTHER and reason in gate.reasons[0]


def test_signature_of_the_finding_counts(tmp_path: Path) -> None:
    """Where a fault has a known cause, the finding must have it."""
    fault = FAULTS["checkpoint-truncated"]
    for signature, status in (("checkpoint_damaged", PROVEN), ("disk_full", OTHER), (None, OTHER)):
        found = {**FOUND, "id": "rank-error", "detail": {"signature": signature}}
        folder = tmp_path / str(signature)
        result = staged_in(folder, fault.name, (0,), outcome="failed", findings=[found])
        assert judge(fault, "small", result, {}, None, RunDir(folder)).status == status


@pytest.mark.parametrize("outcome", ["never_ran", "lost", "preempted", "cluster_failed"])
def test_outcome_caused_by_the_scheduler_proves_nothing(tmp_path: Path, outcome: str) -> None:
    """The fault could not be staged: the gate is neither proven nor green."""
    result = staged_in(tmp_path, "rank-killed", (), outcome=outcome, reason="why")
    gate = judge(KILLED, "small", result, {}, None, RunDir(tmp_path))
    assert (gate.status, gate.reasons) == (NOT_STAGED, [f"{outcome}: why"])


def test_refused_submission_is_proven_by_its_finding(tmp_path: Path) -> None:
    """The scheduler itself must stop that fault."""
    found = [{**FOUND, "id": "submission-refused", "ranks": [], "hosts": []}]
    result = staged_in(tmp_path, "submission-refused", (), outcome="never_ran", findings=found)
    gate = judge(FAULTS["submission-refused"], "small", result, {}, None, RunDir(tmp_path))
    assert gate.status == PROVEN


@pytest.mark.parametrize(
    ("statuses", "verdict", "status"),
    [
        ([PROVEN, PROVEN], "PROVEN", 0),
        ([PROVEN, GREEN], "NOT PROVEN", 1),
        ([PROVEN, OTHER], "NOT PROVEN", 1),
        ([PROVEN, NOT_STAGED], "INCONCLUSIVE", 6),
        ([GREEN, NOT_STAGED], "NOT PROVEN", 1),
        ([PROVEN, None], "INCONCLUSIVE", 6),
    ],
)
def test_verdict_over_all_gates(statuses: list[str | None], verdict: str, status: int) -> None:
    """0 if all are proven; 1 if one is not; otherwise 6 if one was not staged or not judged."""
    names = ["fault-0", "fault-1"]
    by_status = {
        status: [name for name, actual in zip(names, statuses, strict=True) if actual == status]
        for status in (PROVEN, GREEN, OTHER, NOT_STAGED)
    }
    proof = ProofTally(
        "here",
        "2026-11-22",
        names,
        by_status[PROVEN],
        by_status[GREEN],
        by_status[OTHER],
        by_status[NOT_STAGED],
    )
    made = judge_proof(proof, RunTally())
    assert (made.name, made.exit_status) == (verdict, status)
    proven = statuses.count(PROVEN)
    assert made.sentence.startswith(f"{verdict}: {proven} of 2 gates proven on here, 2026-11-22")
    if verdict != "PROVEN":
        assert "fault-1" in made.sentence
    assert made.partial == ("nothing was judged of fault-1" if None in statuses else "")
