"""What the record says of each rank and of the loss."""

from __future__ import annotations

import math
from pathlib import Path

from pytest_clustersmoke.report.rank_records import MAX_LOSSES, mean_losses, rank_records
from tests.support.evidence import Evidence


def test_rank_record_leaves_out_warm_up(tmp_path: Path) -> None:
    """Percentiles leave the warm-up out; the part before the first collective has its own."""
    seconds = [9.0] + [0.1] * 10 + [0.2] * 10
    evidence = Evidence(tmp_path).started().each("done")
    evidence.each("step_times", seconds=seconds, warmup=1, local_seconds=[0.05] * 21)
    evidence.each("metrics", values={"peak_memory_gib": 1.5})
    (one,) = rank_records(evidence.result())
    assert one.done and one.node_rank == 0 and one.peak_memory_gib == 1.5
    assert one.step_s is not None and one.own_s is not None
    assert (one.step_s.p5, one.step_s.p95) == (0.1, 0.2)
    assert math.isclose(one.step_s.p50, 0.15) and one.own_s.p50 == 0.05


def test_silent_rank_has_a_record(tmp_path: Path) -> None:
    """It stands there without figures, and is not done."""
    (one,) = rank_records(Evidence(tmp_path).result())
    assert one.done is False and one.steps == 0 and one.node == "unknown"
    assert one.step_s is None and one.peak_memory_gib is None and not one.behind


def test_straggler_is_marked(tmp_path: Path) -> None:
    """The mark is the criterion's own judgement."""
    evidence = Evidence(tmp_path, ranks_per_node=3).started()
    for rank, own in enumerate((0.05, 0.15, 0.05)):
        times = {"seconds": [0.2] * 20, "warmup": 0, "local_seconds": [own] * 20}
        evidence.rank(rank, ("step_times", times))
    assert [one.behind for one in rank_records(evidence.result())] == [False, True, False]


def test_losses_are_thinned_and_keep_the_last(tmp_path: Path) -> None:
    """At most MAX_LOSSES of 1,601 steps are kept, the last one included."""
    values = [1 / (step + 1) for step in range(1601)]
    found = mean_losses(Evidence(tmp_path).started().each("losses", mean=values).result())
    assert len(found) <= MAX_LOSSES + 1 and found[-1] == (1601, values[-1])
    assert all(value == values[step - 1] for step, value in found)


def test_losses_that_are_not_numbers_become_nan(tmp_path: Path) -> None:
    """A NaN is one in the record too, and so is a text."""
    found = mean_losses(
        Evidence(tmp_path).started().each("losses", mean=["nan", "what", 1.0]).result()
    )
    assert [step for step, _ in found] == [1, 2, 3] and found[2][1] == 1.0
    assert all(isinstance(value, float) and math.isnan(value) for _, value in found[:2])


def test_phase_without_losses_has_an_empty_list(tmp_path: Path) -> None:
    """A phase that records no loss has an empty list, not a zero."""
    assert mean_losses(Evidence(tmp_path).started().result()) == []


def test_overflowing_step_times_have_no_spread(tmp_path: Path) -> None:
    """Where the percentiles overflow there are none: the record holds numbers."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.each("step_times", seconds=[1e308] * 12, warmup=0, local_seconds=[0.05] * 12)
    (one,) = rank_records(evidence.result())
    assert one.step_s is None and one.own_s is not None
