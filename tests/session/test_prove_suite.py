"""`--cluster-prove` as a user runs it, over fake ranks that stage faults without torch."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import Suite, lines_with, properties

STAGED = Path(__file__).parents[1] / "faults" / "programs" / "train_staged.py"
FLAT = ("--cluster-prove", "-k", "loss-flat")


def flat(suite: Suite, *flags: str) -> None:
    """Add a phase in which `loss-flat` can be staged; its program gets these flags."""
    args = {"steps": 3, **dict.fromkeys(flags, True)}
    suite.phase(base="Trained", script=str(STAGED), args=args)


def test_gate_that_detects_its_fault_is_proven(suite: Suite) -> None:
    """The criterion is red with the fault and green without it: status 0."""
    flat(suite)
    before = time.strftime("%Y-%m-%d")
    result = suite.run(*FLAT, "-v")
    assert result.ret == 0
    assert lines_with(result, "TestSmall::prove[loss-flat] PASSED")
    days = {before, time.strftime("%Y-%m-%d")}  # two, if it ran past midnight
    verdict = "PROVEN: 1 of 1 gates proven on one, {}; selected: loss-flat"
    assert result.outlines[-1] in map(verdict.format, days)
    result.assert_outcomes(passed=1, deselected=74)


def test_every_record_of_a_proof_is_marked(suite: Suite) -> None:
    """Spec, result, journal, report, JUnit and run.json name the staged fault, and the link
    `latest` does not point to the proof."""
    flat(suite)
    suite.run(*FLAT)
    (run,) = suite.runs()
    run_json = read_json(run / "run.json") or {}
    assert (run_json["run_id"], run_json["proof"]) == (run.name, ["loss-flat"])
    phases = {"prove-loss-flat": "loss-flat", "prove-nothing-small": "nothing"}
    for name, fault in phases.items():
        folder = run / "phases" / name
        assert (read_json(folder / "spec.json") or {})["fault"]["name"] == fault
        assert (read_json(folder / "result.json") or {})["fault"] == fault
    journal = list(read_events(run / "journal.jsonl").named("intent"))
    assert {event["phase"]: event["fault"] for event in journal} == phases
    assert not (suite.reports / "latest").is_symlink()
    report = json.loads((suite.reports / "latest-proof" / "report.json").read_text())
    assert report["verdict"] == "PROVEN" and report["proof"]["proven"] == ["loss-flat"]
    assert {phase["phase"]: phase["fault"] for phase in report["phases"]} == phases
    cases = properties(suite.reports / "latest-proof" / "junit.xml")
    (case,) = cases.values()
    assert (case["fault"], case["gate"], case["base_phase"]) == ("loss-flat", "proven", "small")
    assert case["phase"] == "prove-loss-flat" and case["result"] == "passed"


def test_criterion_of_a_suite_can_detect_a_fault(suite: Suite) -> None:
    """Its mark names the fault, and the plan the criterion; without one the fault is not staged."""
    dry_run = ("--cluster-prove", "--cluster-dry-run", "-k", "result-corrupted")
    body = "def test_sums(self, phase):\n    pass"
    suite.phase(body=body, script=str(STAGED), gpus_per_node=2)
    assert lines_with(
        suite.run(*dry_run),
        'result-corrupted is not staged: needs a criterion marked detects("result-corrupted")',
    )
    suite.phase(
        body=f'@pytest.mark.detects("result-corrupted")\n{body}',
        script=str(STAGED),
        gpus_per_node=2,
    )
    (line,) = lines_with(suite.run(*dry_run), "result-corrupted: small, 1 x 2 ranks: ")
    assert line.endswith("-> test_sums")


def test_mark_of_an_unknown_fault_is_refused(suite: Suite) -> None:
    """The criterion is named, with a near match."""
    body = "@pytest.mark.detects('loss-flatt')\ndef test_sums(self, phase):\n    pass"
    suite.phase(body=body, script=str(STAGED))
    result = suite.run("--cluster-prove")
    assert result.ret != 0
    (line,) = lines_with(result, "::test_sums is marked detects('loss-flatt')")
    assert line.endswith("did you mean `loss-flat`?")


def test_gate_that_stays_green_is_named(suite: Suite) -> None:
    """A rank that stages nothing leaves the criterion green: status 1, and the fault is named."""
    flat(suite, "deaf")
    result = suite.run(*FLAT)
    assert result.ret == 1
    assert result.outlines[-1].startswith("NOT PROVEN: 0 of 1 gates proven on one")
    assert result.outlines[-1].endswith("(stayed green: loss-flat); selected: loss-flat")
    assert lines_with(result, "test_loss_over_all_ranks_falls stayed green")
    assert lines_with(result, "no rank recorded that it staged the fault")


@pytest.mark.parametrize(
    ("gpu", "status", "words"),
    [
        ({"gpu_uuid": "GPU-1"}, 6, "INCONCLUSIVE: 0 of 1 gates proven on one"),
        ({}, 1, "NOT PROVEN: 0 of 1 gates proven on one"),
    ],
)
def test_gate_of_a_slow_rank_is_skipped_where_ranks_share_a_gpu(
    suite: Suite, gpu: dict[str, str], status: int, words: str
) -> None:
    """It cannot be proven there, which is said, and does not count as a gate that stayed green."""
    suite.phase(base="Trained", script=str(STAGED), gpus_per_node=2, args={"steps": 3, **gpu})
    result = suite.run("--cluster-prove", "-k", "rank-slow]", "-rs")
    assert result.ret == status and result.outlines[-1].startswith(words)
    assert bool(lines_with(result, "(not proven here: rank-slow)")) is bool(gpu)
    shown = "".join(lines_with(result, "SKIPPED"))
    assert ("share a GPU (GPU-1), and slow each other down" in shown) is bool(gpu)


def test_red_criterion_without_a_staged_fault_proves_nothing(suite: Suite) -> None:
    """A criterion that turns red although no rank staged the fault proves nothing."""
    flat(suite, "silent")
    result = suite.run(*FLAT)
    assert result.ret == 1
    assert result.outlines[-1].endswith("(not as expected: loss-flat); selected: loss-flat")


def test_unexpected_red_criterion_is_named(suite: Suite) -> None:
    """Damage beyond the staged fault is reported, with the criterion that shows it."""
    flat(suite, "harm")
    result = suite.run(*FLAT)
    assert result.ret == 1
    assert result.outlines[-1].endswith("(not as expected: loss-flat); selected: loss-flat")
    assert lines_with(
        result, "test_throughput_meets_the_reference failed, but skipped without the fault"
    )


def test_criterion_that_is_red_without_the_fault_proves_nothing(suite: Suite) -> None:
    """The fault is not the cause if the criterion is also red without it."""
    suite.phase(base="Trained", script=str(STAGED), args={"steps": 3, "loss": "rises"})
    result = suite.run(*FLAT)
    assert result.ret == 1
    assert lines_with(result, "test_loss_over_all_ranks_falls was failed without the fault")


def test_failed_job_must_blame_the_rank_of_the_fault(suite: Suite) -> None:
    """The fake always raises on rank 0: the gate is red, but not proven."""
    suite.phase(base="Trained", script=str(STAGED), args={"steps": 3}, gpus_per_node=2)
    result = suite.run("--cluster-prove", "-k", "rank-raised")
    assert result.ret == 1
    # Rank 1 may be ended before it writes that it stages it, too.
    assert lines_with(result, "the fault was staged on rank 0,") or lines_with(
        result, "the fault was staged on ranks 0-1,"
    )
    assert lines_with(result, "the finding names ranks [0] and hosts ['local0'], expected rank 1")


def test_inherited_fault_variable_reaches_no_rank(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLUSTERSMOKE_FAULT in the user's shell or in the profile stages nothing in a normal run."""
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "loss-flat")
    block = {"PYTHONPATH": str(Path(STAGED).parents[2] / "fakes" / "torchrun"), suite.marker: "1"}
    suite.cluster(env={"common": {"set": {**block, "CLUSTERSMOKE_FAULT": "loss-flat"}}})
    body = "def test_variable(self, phase):\n    assert phase.fact('said') == \"fault ''\""
    suite.phase(body=body, script=str(STAGED), args={"steps": 3})
    result = suite.run()
    assert result.ret == 0, result.stdout.str()
    assert "fault" not in suite.record()["phases"][0]


def test_fault_staged_in_a_normal_run_fails_the_job(suite: Suite) -> None:
    """A rank that stages a fault unasked fails its job, even if every criterion passes."""
    suite.phase(script=str(STAGED), args={"steps": 3, "leak": True})
    result = suite.run()
    assert result.ret == 1
    (phase,) = suite.record()["phases"]
    assert phase["outcome"] == "failed"
    finding = phase["findings"][0]
    assert (finding["id"], finding["ranks"]) == ("fault-staged-unasked", [0])


def test_dry_run_lists_the_faults_to_stage(suite: Suite) -> None:
    """Nothing is submitted; each fault has its phase, or the reason why it is not staged."""
    flat(suite)
    result = suite.run("--cluster-prove", "--cluster-dry-run")
    assert lines_with(result, "loss-flat: small, 1 x 1 ranks: every update")
    assert lines_with(result, "infiniband-off is not staged: needs 2 nodes")
    assert lines_with(result, "submission-refused is not staged: one is not a slurm cluster")
    assert suite.runs() == [] and not suite.reports.exists()


def test_proof_under_xdist_is_refused(suite: Suite) -> None:
    """-n is refused before anything is submitted."""
    flat(suite)
    result = suite.run(*FLAT, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--cluster-prove does not run with pytest-xdist" in result.stderr.str()
    assert suite.runs() == []


def test_proof_needs_a_cluster(suite: Suite) -> None:
    """Without a cluster there is nothing to prove."""
    flat(suite)
    result = suite.run("--cluster-prove", cluster="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--cluster-prove needs --cluster NAME" in result.stderr.str()


def test_without_the_option_no_gate_is_collected(suite: Suite) -> None:
    """A normal run has no gate items, so no selection can stage a fault."""
    flat(suite)
    result = suite.run("--collect-only", "-q")
    assert not lines_with(result, "prove[")
