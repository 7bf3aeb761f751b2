"""The records of ranks, and the loss in the record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.report.phase_table import describe_proofs, describe_trace
from pytest_clustersmoke.report.rank_records import (
    MAX_LOSSES,
    mean_losses,
    measure_peak_shares,
    peaks_record,
    proven_steps_record,
    rank_records,
    trace_records,
)
from tests.support.evidence import Evidence


def test_rank_record_leaves_out_warm_up(tmp_path: Path) -> None:
    """Percentiles of steps, and of the part before the first collective, exclude the warm-up."""
    seconds = [9.0] + [0.1] * 10 + [0.2] * 10
    evidence = Evidence(tmp_path).started().each("done")
    evidence.each("step_times", seconds=seconds, warmup=1, local_seconds=[0.05] * 21)
    evidence.each("metrics", values={"peak_memory_gib": 1.5})
    (record,) = rank_records(evidence.result())
    assert record.done and record.node_rank == 0 and record.peak_memory_gib == 1.5
    assert record.step_s is not None and record.own_s is not None
    assert (record.step_s.p5, record.step_s.p95) == (0.1, 0.2)
    assert math.isclose(record.step_s.p50, 0.15) and record.own_s.p50 == 0.05


def test_silent_rank_has_a_record(tmp_path: Path) -> None:
    """A rank that wrote nothing has a record without figures, and is not done."""
    (record,) = rank_records(Evidence(tmp_path).result())
    assert record.done is False and record.steps == 0 and record.node == "unknown"
    assert record.step_s is None and record.peak_memory_gib is None and not record.behind


def test_straggler_is_marked(tmp_path: Path) -> None:
    """`behind` is what the criterion on stragglers finds."""
    evidence = Evidence(tmp_path, ranks_per_node=3).started()
    for rank, own in enumerate((0.05, 0.15, 0.05)):
        times = {"seconds": [0.2] * 20, "warmup": 0, "local_seconds": [own] * 20}
        evidence.rank(rank, ("step_times", times))
    assert [record.behind for record in rank_records(evidence.result())] == [False, True, False]


def test_losses_are_thinned_and_keep_the_last(tmp_path: Path) -> None:
    """At most MAX_LOSSES of 1,601 steps are kept, the last one included."""
    values = [1 / (step + 1) for step in range(1601)]
    losses = mean_losses(Evidence(tmp_path).started().each("losses", mean=values).result())
    assert len(losses) <= MAX_LOSSES + 1 and losses[-1] == (1601, values[-1])
    assert all(value == values[step - 1] for step, value in losses)


def test_losses_that_are_not_numbers_become_nan(tmp_path: Path) -> None:
    """NaN and text that is not a number become NaN in the record."""
    losses = mean_losses(
        Evidence(tmp_path).started().each("losses", mean=["nan", "what", 1.0]).result()
    )
    assert [step for step, _ in losses] == [1, 2, 3] and losses[2][1] == 1.0
    assert all(isinstance(value, float) and math.isnan(value) for _, value in losses[:2])


def test_phase_without_losses_has_an_empty_list(tmp_path: Path) -> None:
    """A phase that records no loss has an empty list, not a zero."""
    assert mean_losses(Evidence(tmp_path).started().result()) == []


def test_overflowing_step_times_have_no_spread(tmp_path: Path) -> None:
    """If the percentiles overflow, the record has none."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.each("step_times", seconds=[1e308] * 12, warmup=0, local_seconds=[0.05] * 12)
    (record,) = rank_records(evidence.result())
    assert record.step_s is None and record.own_s is not None


TRACED = {
    "first": 4,
    "last": 6,
    "proven": [5],
    "span_s": 2.0,
    "compute_s": 1.0,
    "communication_s": 0.5,
    "overlapped_s": 0.25,
    "copy_s": 0.25,
    "idle_s": 0.5,
}


def to_trace(folder: Path, ranks: object, count: int = 1) -> Evidence:
    """A phase of `count` ranks, of which these were to be traced."""
    evidence = Evidence(folder, ranks_per_node=count).started()
    spec = read_json(evidence.dir.spec) or {}
    write_json(evidence.dir.spec, {**spec, "trace": {"ranks": ranks}})
    return evidence


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            TRACED,
            "trace of rank 0, steps 4-6 (5 proven): compute 50 %, communication 25 % (50 % of it "
            "overlapped), copies 12 %, idle 25 %",
        ),
        (
            {**TRACED, "last": 4, "proven": [], "communication_s": 0.0, "overlapped_s": 0.0},
            "trace of rank 0, step 4: compute 50 %, communication 0 %, copies 12 %, idle 25 %",
        ),
        ({"reason": "OSError: full"}, "no trace of rank 0: OSError: full"),
        ({**TRACED, "span_s": "nan"}, "no trace of rank 0: its event is malformed"),
        ({**TRACED, "first": "4"}, "no trace of rank 0: its event is malformed"),
        ({**TRACED, "idle_s": [1]}, "no trace of rank 0: its event is malformed"),
    ],
)
def test_trace_is_described_in_words(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """Where the time went, or why there is no trace; the event may hold anything."""
    evidence = to_trace(tmp_path, [0]).rank(0, ("trace", fields))
    (record,) = trace_records(evidence.result())
    assert describe_trace(record) == words


def test_only_ranks_that_were_to_be_traced_have_a_trace(tmp_path: Path) -> None:
    """One that wrote none says so; a malformed order names no rank."""
    (record,) = trace_records(to_trace(tmp_path, [1], count=2).result())
    assert record.rank == 1 and record.reason.startswith("it recorded none: ")
    assert trace_records(to_trace(tmp_path / "other", 0).result()) == []


def prove(evidence: Evidence, *steps: int, **fields: Any) -> None:
    for step in steps:
        evidence.each("proof", **{"step": step, "seconds": 0.5, **fields})


def test_proven_steps_and_their_time_are_recorded(tmp_path: Path) -> None:
    """The seed and the steps drawn with it, how many were proven, and the slowest rank's time."""
    evidence = Evidence(tmp_path, ranks_per_node=2).started()
    assert proven_steps_record(evidence.result()) is None
    evidence.each("proof_plan", seed="abc", steps=[1, 6, 10])
    prove(evidence, 1, 6, 10)
    record = proven_steps_record(evidence.result())
    assert record is not None and record.share is None
    assert describe_proofs(record) == "3 steps proven (1, 6, 10) in 1.5 s"
    evidence.rank(1, ("stage", {"name": "train", "state": "end", "seconds": 15.0}))
    record = proven_steps_record(evidence.result())
    assert record is not None
    assert (record.seed, record.drawn, record.proven, record.seconds) == ("abc", [1, 6, 10], 3, 1.5)
    assert describe_proofs(record) == "3 steps proven (1, 6, 10) in 1.5 s, 10 % of the training"


def test_steps_that_were_not_proven_do_not_count(tmp_path: Path) -> None:
    """One that could not be repeated, and one that a rank left out."""
    evidence = Evidence(tmp_path, ranks_per_node=2).started()
    evidence.each("proof_plan", seed="abc", steps=[1, 6, 10])
    prove(evidence, 1)
    prove(evidence, 6, not_measured="reentrant checkpointing cannot be replayed")
    evidence.rank(0, ("proof", {"step": 10, "seconds": "long"}))
    record = proven_steps_record(evidence.result())
    assert record is not None
    assert describe_proofs(record) == "1 of 3 steps proven (1, 6, 10) in 1 s"


def test_hostile_plan_of_proofs_is_recorded_as_empty(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path).started().each("proof_plan", seed=3, steps="all")
    record = proven_steps_record(evidence.result())
    assert record is not None and (record.seed, record.drawn, record.proven) == ("", [], 0)


def test_peaks_are_recorded_with_their_share_of_the_dense_peak(tmp_path: Path) -> None:
    """By the clock that nvidia-smi showed on the node; figures of the node have none."""
    evidence = Evidence(tmp_path, ranks_per_node=1).done()
    assert peaks_record(evidence.result()) is None
    gpu = {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "gpu_uuid": "GPU-0"}
    start = {"rank": 0, "node": "n0", "capability": "9.0", "multiprocessors": 132, **gpu}
    figure = {"device": "GPU-0", "name": "gemm_bf16_tflops", "value": 500.0, "unit": "TFLOP/s"}
    node = {"device": "", "name": "cpu_latency_ns", "value": 90.0, "unit": "ns"}
    figures = [{**figure, "higher_is_better": True}, {**node, "higher_is_better": False}]
    counted = {"calls": 3000, "wrong": 1, "precision": "bf16", "seconds": 2.5}
    reasons: dict[str, Any] = {"not_measured": {"overlap_share": "RuntimeError: no"}, "cpu": "EPYC"}
    reasons |= {"pairs": [{"from": 0, "to": 3, "link": "NVLink", "gb_per_s": 370.0}]}
    evidence.rank(0, ("start", start), ("peaks", {"figures": figures, **counted, **reasons}))
    gpus = [{"uuid": "GPU-0", "clocks.max.sm": "1830 MHz"}]
    write_json(evidence.dir.node_facts(0), {"node": "n0", "host": "h", "gpus": gpus})
    record = peaks_record(evidence.result())
    assert record is not None
    assert (record.seconds, record.calls, record.wrong) == (2.5, 3000, 1)
    (pair,) = record.pairs
    assert (pair.rank, pair.node, pair.to, pair.link) == (0, "n0", 3, "NVLink")
    assert pair.gb_per_s == 370.0
    assert record.not_measured == ["rank 0 (n0, GPU 0) overlap_share: RuntimeError: no"]
    gemm, latency = record.figures
    assert gemm.dense_share == pytest.approx(500 / 989, rel=0.01)
    assert (gemm.model, latency.model) == ("NVIDIA H100 80GB HBM3", "EPYC")
    assert (gemm.node, gemm.device, gemm.value) == ("n0", "GPU-0", 500.0)
    assert (latency.device, latency.dense_share, latency.higher_is_better) == ("", None, False)


def test_training_is_a_share_of_the_peak_that_an_earlier_phase_measured(tmp_path: Path) -> None:
    """Of 1,000 parameters 100 are trained: 4,200 FLOP a token. The lower rank counts, and without
    any of it there is no share; that of the dense peak needs the clock of its own device."""
    first = Evidence(tmp_path / "first", ranks_per_node=2).started()
    second = Evidence(tmp_path / "second", ranks_per_node=2).started()
    for rank, tokens in ((0, 1e9), (1, 2e9)):
        start = {"rank": rank, "node": "n0", "device": f"cuda:{rank}", "gpu_uuid": f"GPU-{rank}"}
        start |= {"capability": "9.0", "multiprocessors": 132}
        figure = {"device": f"GPU-{rank}", "name": "gemm_bf16_tflops", "value": 100, "unit": "T"}
        sizes = {"parameters": 1000, "trained": 100}
        peaks = {"figures": [figure], "precision": "bf16"}
        first.rank(rank, ("start", start), ("peaks", peaks))
        metrics = {"values": {"tokens_per_s_per_rank": tokens}}
        second.rank(rank, ("start", start), ("own_steps", sizes), ("metrics", metrics))
    results = {"first": first.result(), "second": second.result()}
    share = measure_peak_shares(results)["second"]
    assert share.measured == pytest.approx(0.042) and share.dense is None
    assert measure_peak_shares({"second": second.result()}) == {}
    gpus = [{"uuid": "GPU-0", "clocks.max.sm": "1830 MHz"}]
    write_json(first.dir.node_facts(0), {"node": "n0", "host": "h", "gpus": gpus})
    results["first"] = first.result()
    assert measure_peak_shares(results)["second"].dense == pytest.approx(4.2 / 989, rel=0.01)
    second.rank(1, ("own_steps", {"parameters": 1000}))
    results["second"] = second.result()
    assert measure_peak_shares(results) == {}
