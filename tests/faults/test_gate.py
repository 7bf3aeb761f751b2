"""When a gate is proven, and which differences are reported if it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_counts import (
    GREEN_GATE,
    PROVEN_GATE,
    UNPROVABLE_GATE,
    UNSTAGED_GATE,
    WRONG_GATE,
    GateRecord,
    ProofRecord,
    RunTally,
)
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json, write_json
from pytest_clustersmoke.evidence.staged_marks import CANNOT_STAGE
from pytest_clustersmoke.evidence.telemetry import Events, EventWriter
from pytest_clustersmoke.faults import FAULTS
from pytest_clustersmoke.faults.gate import Baseline, Observed, judge_gate
from pytest_clustersmoke.report.verdict import judge_record
from tests.support import records
from tests.support.evidence import Evidence

FLIPPED, KILLED = FAULTS["gradient-flipped"], FAULTS["rank-killed"]
GRADIENTS, FINITE = "test_gradients_are_in_sync", "test_loss_is_finite_on_every_rank"
HEALTHY = Baseline("passed", "", {GRADIENTS: Observed("passed"), FINITE: Observed("passed")})
RED = {
    GRADIENTS: Observed("failed", "gradients are not in sync on rank 1 (n0)"),
    FINITE: Observed("passed"),
}
FINDING = {"id": "rank-died", "primary": True, "cause": "it died", "ranks": [1], "hosts": ["n0"]}


def staged_in(folder: Path, fault: str, ranks: tuple[int, ...] = (1,), **job: Any) -> PhaseResult:
    """Two ranks on one node; `ranks` staged the fault, and `job` is in `result.json`."""
    evidence = Evidence(folder, 1, 2).started()
    spec = read_json(evidence.dir.spec) or {}
    write_json(evidence.dir.spec, {**spec, "fault": {"name": fault, "base": "small", "rank": 1}})
    for rank in ranks:
        evidence.rank(rank, ("staged", {"name": fault}))
    write_json(evidence.dir.result, {"outcome": "passed", **job})
    return evidence.result()


def judge_criteria(
    folder: Path,
    criteria: dict[str, Observed] = RED,
    baseline: Baseline = HEALTHY,
    ranks: tuple[int, ...] = (1,),
    **job: Any,
) -> GateRecord:
    result = staged_in(folder, "gradient-flipped", ranks, **job)
    return judge_gate(FLIPPED, "small", result, criteria, baseline, RunDir(folder))


def judge_job(folder: Path, staged_on: tuple[int, ...] = (1,), **changes: Any) -> GateRecord:
    findings = [{**FINDING, **changes}]
    result = staged_in(folder, "rank-killed", staged_on, outcome="failed", findings=findings)
    return judge_gate(KILLED, "small", result, {}, None, RunDir(folder))


@pytest.mark.parametrize(("host", "status"), [("node 0", PROVEN_GATE), ("n1", WRONG_GATE)])
def test_stale_evidence_is_of_the_node_that_its_rank_ran_on(
    tmp_path: Path, host: str, status: str
) -> None:
    """No event of that rank counts, so that none says on which node it ran."""
    fault = FAULTS["evidence-stale"]
    findings = [{**FINDING, "id": "foreign-events", "hosts": [host]}]
    result = staged_in(tmp_path, fault.name, (0, 1), outcome="failed", findings=findings)
    foreign = replace(result.ranks[1], events=Events(tmp_path, foreign="they lack the word"))
    result = replace(result, ranks=(result.ranks[0], foreign))
    gate = judge_gate(fault, "small", result, {}, None, RunDir(tmp_path))
    assert gate.status == status, gate.reasons


def test_gate_is_proven_by_the_failing_criterion(tmp_path: Path) -> None:
    """A gate is proven if only its criterion fails and names the rank."""
    gate = judge_criteria(tmp_path)
    assert (gate.status, gate.reasons, gate.red) == (PROVEN_GATE, [], [GRADIENTS])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {FINITE: Observed("failed", "lost")},
            f"{FINITE} failed, but passed without the fault",
        ),
        ({FINITE: Observed("skipped")}, f"{FINITE} skipped, but passed without the fault"),
        (
            {GRADIENTS: Observed("failed", "not in sync on rank 0 (n0)")},
            f"{GRADIENTS} names ranks [0], expected rank 1 (n0)",
        ),
        ({GRADIENTS: Observed("failed", "not in sync")}, "names ranks []"),
        (
            {GRADIENTS: Observed("failed", "on rank 0 (n0), rank 1 (n0)")},
            "names ranks [0, 1]",
        ),
    ],
)
def test_other_failures_prove_nothing(
    tmp_path: Path, changed: dict[str, Observed], reason: str
) -> None:
    """Another criterion's result changed, or the message names another rank."""
    gate = judge_criteria(tmp_path, {**RED, **changed})
    assert gate.status == WRONG_GATE and reason in gate.reasons[0]


def test_passing_criterion_is_reported(tmp_path: Path) -> None:
    """A criterion that still passes is reported: it missed the fault."""
    gate = judge_criteria(tmp_path, {GRADIENTS: Observed("passed"), FINITE: Observed("passed")})
    assert gate.status == GREEN_GATE and gate.reasons[0] == f"{GRADIENTS} stayed green"


def test_failure_without_the_fault_proves_nothing(tmp_path: Path) -> None:
    """A criterion that already failed without the fault proves nothing."""
    before = {**HEALTHY.criteria, GRADIENTS: Observed("failed", "worn")}
    gate = judge_criteria(tmp_path, baseline=replace(HEALTHY, criteria=before))
    assert gate.status == WRONG_GATE and "was failed without the fault: worn" in gate.reasons[0]


@pytest.mark.parametrize(
    ("outcome", "status"), [("failed", WRONG_GATE), ("never_ran", UNSTAGED_GATE)]
)
def test_unhealthy_phase_proves_nothing(tmp_path: Path, outcome: str, status: str) -> None:
    """If the phase without the fault failed or never ran, its criteria prove nothing."""
    gate = judge_criteria(tmp_path, baseline=Baseline(outcome, "why", {}))
    assert gate.status == status
    assert gate.reasons == [f"without the fault the phase is {outcome}: why"]


@pytest.mark.parametrize("ranks", [(), (0,), (0, 1)])
def test_fault_must_be_staged_on_its_rank_only(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """`staged` events of other ranks, or of none, do not count."""
    for gate in (judge_criteria(tmp_path / "a", ranks=ranks), judge_job(tmp_path / "b", ranks)):
        assert gate.status == WRONG_GATE
        assert gate.reasons[0].startswith("the fault was staged on ")
        assert gate.reasons[0].endswith(", expected only rank 1")


def test_failed_job_is_not_a_failed_criterion(tmp_path: Path) -> None:
    """A job that failed before its criteria could judge does not prove the gate."""
    gate = judge_criteria(tmp_path, {}, outcome="failed", reason="it fell over")
    assert (
        gate.status == GREEN_GATE
        and "the job failed, but a criterion was expected to fail" in gate.reasons[1]
    )


def test_fault_that_the_program_cannot_have_is_not_staged(tmp_path: Path) -> None:
    """A rank that says so proves nothing; but not once a rank has staged the fault."""
    refusal = f"{CANNOT_STAGE}: its parameters are sharded, and a twin run needs whole ones"
    for name, ranks, status in (("before", (), UNSTAGED_GATE), ("after", (1,), GREEN_GATE)):
        folder = tmp_path / name
        result = staged_in(folder, "gradient-flipped", ranks, outcome="failed")
        fields = {"type": "RuntimeError", "message": refusal, "traceback": ""}
        EventWriter(result.directory.rank_events(1)).write("error", **fields)
        result = collect_phase(result.directory)
        gate = judge_gate(FLIPPED, "small", result, {}, HEALTHY, RunDir(folder))
        assert gate.status == status
        assert (gate.reasons == [refusal]) is (status == UNSTAGED_GATE)


@pytest.mark.parametrize(
    ("uuids", "status"),
    [(("GPU-1", "GPU-1"), UNPROVABLE_GATE), (("GPU-1", "GPU-2"), GREEN_GATE), ((), GREEN_GATE)],
)
def test_slow_rank_cannot_be_named_where_ranks_share_a_gpu(
    tmp_path: Path, uuids: tuple[str, ...], status: str
) -> None:
    """Neither proven nor a gate that stayed green; with a GPU each, a miss is a miss."""
    fault = FAULTS["rank-slow"]
    behind = "test_no_rank_falls_behind"
    result = staged_in(tmp_path, fault.name)
    for number, uuid in enumerate(uuids):
        start = {"rank": number, "device": "cuda:0", "node": "n0", "gpu_uuid": uuid}
        EventWriter(result.directory.rank_events(number)).write("start", **start)
    result = collect_phase(result.directory)
    baseline = replace(HEALTHY, criteria={behind: Observed("skipped")})
    place = RunDir(tmp_path)
    gate = judge_gate(fault, "small", result, {behind: Observed("skipped")}, baseline, place)
    assert gate.status == status
    if status == UNPROVABLE_GATE:
        assert "share a GPU (GPU-1), and slow each other down" in gate.reasons[0]
        other = {behind: Observed("skipped"), FINITE: Observed("failed", "lost")}
        assert judge_gate(fault, "small", result, other, baseline, place).status == GREEN_GATE
        healthy = {behind: Observed("failed", f"{result.ranks[0]} is slow")}
        assert judge_gate(fault, "small", result, healthy, baseline, place).status == WRONG_GATE


def test_gate_is_proven_by_the_right_finding(tmp_path: Path) -> None:
    """The finding has the expected id, rank and host; the time to detection is recorded."""
    journal = EventWriter(tmp_path / "journal.jsonl")
    journal.write("ended", phase="small")
    gate = judge_job(tmp_path)
    assert (gate.status, gate.finding, gate.ranks, gate.hosts) == (
        PROVEN_GATE,
        "rank-died",
        [1],
        ["n0"],
    )
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
    """A job that failed with another finding, or one that names another rank, proves nothing."""
    gate = judge_job(tmp_path, **changes)
    assert gate.status == WRONG_GATE and reason in gate.reasons[0]


def test_finding_must_have_the_signature_of_the_fault(tmp_path: Path) -> None:
    """If a fault has a known signature, the finding must have it."""
    fault = FAULTS["checkpoint-truncated"]
    for signature, status in (
        ("checkpoint_damaged", PROVEN_GATE),
        ("disk_full", WRONG_GATE),
        (None, WRONG_GATE),
    ):
        finding = {**FINDING, "id": "rank-error", "detail": {"signature": signature}}
        folder = tmp_path / str(signature)
        result = staged_in(folder, fault.name, (0,), outcome="failed", findings=[finding])
        assert judge_gate(fault, "small", result, {}, None, RunDir(folder)).status == status


@pytest.mark.parametrize("outcome", ["never_ran", "lost", "preempted", "cluster_failed"])
def test_scheduler_outcomes_prove_nothing(tmp_path: Path, outcome: str) -> None:
    """If the scheduler ended the job, the fault was not staged: neither proven nor green."""
    result = staged_in(tmp_path, "rank-killed", (), outcome=outcome, reason="why")
    gate = judge_gate(KILLED, "small", result, {}, None, RunDir(tmp_path))
    assert (gate.status, gate.reasons) == (UNSTAGED_GATE, [f"{outcome}: why"])


def test_refused_submission_proves_its_gate(tmp_path: Path) -> None:
    """The fault of a refused submission is proven by the refusal."""
    findings = [{**FINDING, "id": "submission-refused", "ranks": [], "hosts": []}]
    result = staged_in(tmp_path, "submission-refused", (), outcome="never_ran", findings=findings)
    gate = judge_gate(FAULTS["submission-refused"], "small", result, {}, None, RunDir(tmp_path))
    assert gate.status == PROVEN_GATE


@pytest.mark.parametrize(
    ("statuses", "verdict", "status"),
    [
        ([PROVEN_GATE, PROVEN_GATE], "PROVEN", 0),
        ([PROVEN_GATE, GREEN_GATE], "NOT PROVEN", 1),
        ([PROVEN_GATE, WRONG_GATE], "NOT PROVEN", 1),
        ([PROVEN_GATE, UNSTAGED_GATE], "INCONCLUSIVE", 6),
        ([PROVEN_GATE, UNPROVABLE_GATE], "INCONCLUSIVE", 6),
        ([GREEN_GATE, UNSTAGED_GATE], "NOT PROVEN", 1),
        ([PROVEN_GATE, None], "INCONCLUSIVE", 6),
    ],
)
def test_verdict_over_all_gates(statuses: list[str | None], verdict: str, status: int) -> None:
    """0 if all are proven, 1 if one failed, otherwise 6 if one was not staged or not judged."""
    names = ["fault-0", "fault-1"]
    gates = [
        records.gate(name, status=status)
        for name, status in zip(names, statuses, strict=True)
        if status is not None
    ]
    proof = {**records.proof(*gates), "planned": names, "cluster": "here", "date": "2026-11-22"}
    made = judge_record(records.counted(RunTally(), ProofRecord.model_validate(proof)))
    assert (made.name, made.exit_status) == (verdict, status)
    proven = statuses.count(PROVEN_GATE)
    assert made.sentence.startswith(f"{verdict}: {proven} of 2 gates proven on here, 2026-11-22")
    if verdict != "PROVEN":
        assert "fault-1" in made.sentence
    assert made.partial == ("no result for fault-1" if None in statuses else "")
