"""The phase result: the worst value over ranks, ranks that must agree, missing values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.evidence import phase_result, scheduler_record
from pytest_clustersmoke.evidence.finding import Evidence as Line
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.fingerprint import fingerprint_of
from pytest_clustersmoke.evidence.job_results import RankResult
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.scheduler_record import (
    JobState,
    ScheduledJob,
    SchedulerRecord,
    read_scheduler_record,
)
from pytest_clustersmoke.jobs.outcome import judge_job
from tests.support.evidence import Evidence, make_profile


@pytest.fixture
def pair(tmp_path: Path) -> Evidence:
    """A job of one node and two ranks that is done."""
    return Evidence(tmp_path, 1, 2).done()


def metrics(evidence: Evidence, *values: dict[str, Any]) -> Evidence:
    for rank, value in enumerate(values):
        evidence.rank(rank, ("metrics", {"values": value}))
    return evidence


def test_a_metric_is_the_worst_over_ranks(pair: Evidence) -> None:
    """The lowest value if higher is better, otherwise the highest."""
    result = metrics(
        pair,
        {"steps_per_s": 10, "peak_memory_gib": 1.0},
        {"steps_per_s": 9, "peak_memory_gib": 2.0},
    ).result()
    assert result.metric("steps_per_s").value == 9
    assert result.metric("peak_memory_gib").value == 2.0
    assert result.metric("steps_per_s").unit == "steps/s"
    assert result.metrics() == {"steps_per_s": 9, "peak_memory_gib": 2.0}


@pytest.mark.parametrize("other", [{}, {"steps_per_s": "nan"}, {"steps_per_s": "10"}, {"x": 1}])
def test_a_metric_that_one_rank_lacks_is_missing(pair: Evidence, other: dict[str, Any]) -> None:
    """If a rank has no number, the metric is NaN and its check fails."""
    metric = metrics(pair, {"steps_per_s": 10}, other).result().metric("steps_per_s")
    assert math.isnan(metric.value)
    with pytest.raises(AssertionError, match="steps_per_s is nan"):
        metric.check()


def test_unknown_metric_raises_key_error(pair: Evidence) -> None:
    """The error lists the known metrics."""
    with pytest.raises(KeyError, match="unknown metric 'step_per_s'; known: steps_per_s"):
        pair.result().metric("step_per_s")


def test_a_reference_comes_from_the_profile(pair: Evidence, tmp_path: Path) -> None:
    """check() compares with the cluster's reference; without one it is unmeasured."""
    profile = make_profile(
        tmp_path,
        references={
            "small": {
                "steps_per_s": {"value": 20, "lower": "-10 %", "unit": "steps/s", "source": "x"}
            }
        },
    )
    metrics(pair, *[{"steps_per_s": 10, "samples_per_s": 1}] * 2)
    with pytest.raises(AssertionError, match=r"50\.0 % below the reference 20\.00 steps/s"):
        pair.result(profile).metric("steps_per_s").check()
    with pytest.raises(Unmeasured, match="no reference"):
        pair.result(profile).metric("samples_per_s").check()


def test_a_fact_needs_agreement(pair: Evidence) -> None:
    """A fact that differs between ranks, or that a rank lacks, fails and names the rank."""
    pair.rank(0, ("fact", {"values": {"same": 1, "other": 1, "half": 1}}))
    pair.rank(1, ("fact", {"values": {"same": 1, "other": 2}}))
    result = pair.result()
    assert result.fact("same") == 1
    assert result.facts("half") == {0: 1, 1: None}
    with pytest.raises(AssertionError, match="ranks differ in fact 'other': rank 0 1, rank 1 2"):
        result.fact("other")
    with pytest.raises(AssertionError, match="rank 1 did not report fact 'half'"):
        result.fact("half")


def test_losses_keep_nan(pair: Evidence) -> None:
    """A NaN in the losses stays a NaN."""
    pair.each("losses", mean=[2.0, float("nan"), "x"])
    losses = pair.result().losses
    assert losses[0] == 2.0 and all(math.isnan(loss) for loss in losses[1:])


def test_losses_of_a_long_loop_are_joined(pair: Evidence) -> None:
    """A line of each part; without one of them, nobody knows which step a loss is of."""
    for first in (0, 2):
        pair.each("earlier_losses", first=first, mean=[1.0, 2.0])
    pair.each("losses", first=4, mean=[3.0])
    assert pair.result().losses == [1.0, 2.0, 1.0, 2.0, 3.0]
    pair.each("losses", first=5, mean=[3.0])
    with pytest.raises(AssertionError, match="rank 0 did not report losses"):
        _ = pair.result().losses


def test_losses_that_differ_between_ranks_fail(pair: Evidence) -> None:
    """A loss that was not averaged over ranks fails."""
    pair.rank(0, ("losses", {"mean": [1.0]})).rank(1, ("losses", {"mean": [2.0]}))
    with pytest.raises(AssertionError, match="ranks differ in losses"):
        _ = pair.result().losses


def test_checkpoint_files_are_those_of_rank_0(pair: Evidence) -> None:
    """Names and sizes; entries of another kind are left out."""
    files = [{"name": "a", "bytes": 3}, {"name": "b"}, "c", {"name": "d", "bytes": "9"}]
    pair.rank(0, ("checkpoint", {"files": files})).rank(1, ("checkpoint", {"files": []}))
    assert pair.result().checkpoint_files() == {"a": 3}


def test_versions_come_from_ranks_first(pair: Evidence) -> None:
    """Versions that ranks imported are listed by rank, installed ones by node."""
    pair.each("start", torch="2.2.0", node="n0")
    assert pair.result().versions("torch") == {"rank 0 (n0)": "2.2.0", "rank 1 (n0)": "2.2.0"}
    assert pair.result().versions("deepspeed") == {"n0": None}


def test_job_that_never_started(tmp_path: Path) -> None:
    """A job that never started has a result in which nothing passes."""
    result = Evidence(tmp_path, 2, 2).result()
    assert (result.outcome, result.ranks_done, result.metrics()) == ("lost", 0, {})
    assert result.transport_summary() == "unknown"
    assert [node.name for node in result.nodes] == ["node 0", "node 1"]
    for check in (result.check_gradients, result.check_reload):
        with pytest.raises(AssertionError):
            check()


@pytest.mark.parametrize(
    "changed",
    [None, {"phase": 7}, {"nodes": "2"}, {"nodes": -1}, {"nodes": 10**9}, {"args": [1]}],
)
def test_spec_that_a_job_overwrote_is_no_traceback(tmp_path: Path, changed: Any) -> None:
    """It lies where the job can write. Nothing of such a job passes."""
    evidence = Evidence(tmp_path, 1, 1).done()
    spec = read_json(evidence.dir.spec) or {}
    write_json(evidence.dir.spec, {} if changed is None else {**spec, **changed})
    result = collect_phase(evidence.dir)
    assert (result.name, result.nodes, result.world_size, result.args) == ("small", (), 0, {})
    assert judge_job(result, JobState("ended", "COMPLETED")).outcome == "failed"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = (
    "start",
    "group",
    "fact",
    "metrics",
    "losses",
    "gradients",
    "proof",
    "replicas",
    "checkpoint",
    "reload",
    "step",
    "stage",
    "done",
)
FIELDS = (
    "values",
    "mean",
    "files",
    "step",
    "backend",
    "node",
    "node_rank",
    "equal",
    "seconds",
    "name",
    "state",
    "compared",
    "parameters",
    "tensors",
    "torch",
)


@settings(derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(FIELDS), JUNK)),
        max_size=6,
    )
)
def test_hostile_events_never_break_the_reading(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]]
) -> None:
    """Values of any kind are read without an exception; checks pass or fail, nothing else."""
    evidence = Evidence(tmp_path)
    evidence.dir.rank_events(0).unlink(missing_ok=True)
    result = evidence.rank(0, *events).result()
    result.metrics()
    result.checkpoint_files()
    result.steps_done()
    result.stage_seconds()
    result.transport_summary()
    result.versions("torch")
    fingerprint_of(result)
    for check in (
        result.check_gradients,
        result.check_reload,
        lambda: result.losses,
        lambda: result.backend,
        lambda: result.transports.intra_node.check(),
    ):
        try:
            check()
        except (AssertionError, Unmeasured):
            continue


def test_non_finite_stage_seconds_are_ignored(pair: Evidence) -> None:
    """A stage with `inf` seconds counts as missing, since the record has finite numbers only."""
    for rank, seconds in ((0, "inf"), (1, 2.5)):
        pair.rank(rank, ("stage", {"name": "model", "state": "end", "seconds": seconds}))
    pair.rank(0, ("stage", {"name": "train", "state": "end", "seconds": "inf"}))
    assert pair.result().stage_seconds() == {"model": 2.5}


def test_findings_are_read_from_the_jobs_record(pair: Evidence) -> None:
    """As they were written."""
    finding = Finding(
        "hang",
        "rank 1 hangs",
        "look at it",
        evidence=(Line("f.log", 3, "text"),),
        hosts=("n0",),
        ranks=(1,),
        detail={"timeline": ["a", "b"]},
    )
    warning = Finding("shm-small", "small", "enlarge it", primary=False, severity="warning")
    record = {"outcome": "failed", "reason": "rank 1 hangs", "job_id": "7", "queue_s": 1.5}
    findings = [finding.as_dict(), warning.as_dict()]
    write_json(pair.dir.result, {**record, "findings": findings})
    result = pair.result()
    assert result.findings == (finding, warning)
    assert (result.reason, result.job_id) == ("rank 1 hangs", "7")
    assert (result.queue_s, result.run_s) == (1.5, None)


@pytest.mark.parametrize(
    ("findings", "ids"),
    [
        (None, []),
        ({"id": "hang"}, []),
        (["hang", 7, {"id": "hang"}], ["hang"]),
        ([{"id": 7, "cause": [], "evidence": [1], "hosts": "n0", "ranks": [True]}], ["unknown"]),
        ([{"id": "hang", "evidence": [{"line": "x"}], "detail": [], "ranks": 3}], ["hang"]),
    ],
)
def test_hostile_findings_are_left_out(pair: Evidence, findings: Any, ids: list[str]) -> None:
    """A finding without its parts stays one, with the parts missing; it is not primary."""
    record = {"outcome": ["passed"], "reason": {}, "job_id": 7, "queue_s": "nan"}
    write_json(pair.dir.result, {**record, "findings": findings})
    result = pair.result()
    assert [finding.id for finding in result.findings] == ids
    assert not any(f.primary or f.hosts or f.ranks or f.detail for f in result.findings)
    assert (result.outcome, result.reason, result.job_id) == ("lost", "", "")
    assert result.queue_s is None


def test_scheduler_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read serves the names of silent nodes, the outcome and the findings."""
    evidence = Evidence(tmp_path, nodes=2).node(0, ok=False, reason="terminated")
    SchedulerRecord(ScheduledJob(state="CANCELLED", nodes="n[0-1]", text="x")).write(
        evidence.dir.scheduler
    )
    reads: list[Path] = []

    def read(path: Path) -> SchedulerRecord:
        reads.append(path)
        return read_scheduler_record(path)

    monkeypatch.setattr(phase_result, "read_scheduler_record", read)
    monkeypatch.setattr(scheduler_record, "read_scheduler_record", read)
    result = evidence.result()
    judgement = judge_job(result, JobState("ended", "CANCELLED"))
    diagnose(result, judgement)
    assert [node.name for node in result.nodes] == ["n0", "n1"]
    assert reads == [evidence.dir.scheduler]


def test_ranks_are_asked_for_their_device_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criteria ask for each rank whether all ranks have a GPU: so a phase of thousands of ranks
    must not look at all of them each time."""
    phase = Evidence(tmp_path, 4, 8).started().result()
    asked, device = 0, vars(RankResult)["device"].fget
    assert callable(device)

    def count(rank: RankResult) -> str:
        nonlocal asked
        asked += 1
        return str(device(rank))

    monkeypatch.setattr(RankResult, "device", property(count))
    assert [phase.on_gpus for _ in phase.ranks] == [False] * 32
    assert 0 < asked <= 32
