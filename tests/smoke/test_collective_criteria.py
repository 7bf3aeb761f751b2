"""Judgement of collectives: correct ones pass, wrong or missing ones never do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import collective_criteria
import collective_sizes
from pytest_clustersmoke.config.expectations import Reference
from pytest_clustersmoke.criteria import PhaseView, bandwidth
from pytest_clustersmoke.evidence.metric import Unmeasured
from tests.support.swept import ARGS, Change, Record, Swept, where

MIB = 2**20
CHECKS = (
    collective_criteria.check_results,
    collective_criteria.check_sizes,
    collective_criteria.check_metrics_follow,
    collective_criteria.check_spread,
    collective_criteria.check_dips,
)
OF_A_NETWORK = [collective_criteria.check_spread, collective_criteria.check_dips]
Check = Callable[[PhaseView], None]


def failure(check: Check, result: PhaseView) -> str:
    """The message with which a check fails."""
    with pytest.raises(AssertionError) as caught:
        check(result)
    return str(caught.value)


def unmeasured(check: Check, result: PhaseView) -> str:
    """The reason that a check gives if it cannot judge."""
    with pytest.raises(Unmeasured) as caught:
        check(result)
    return str(caught.value)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (1, 8), (3, 1)])
def test_healthy_phase_passes_everything(tmp_path: Path, nodes: int, per_node: int) -> None:
    """On NCCL every check judges, and none fails."""
    result = Swept(tmp_path, nodes, per_node).metrics().result()
    for check in CHECKS:
        check(result)
    assert result.metric("latency_us").value == pytest.approx(20, rel=1e-2)
    assert result.metric("busbw_gb_per_s").value == pytest.approx(200, rel=1e-2)


def test_bandwidth_of_a_size_left_out_on_purpose_is_not_missed(tmp_path: Path) -> None:
    """--cluster-set args.max_bytes leaves a size out: its reference, which is for the whole ladder,
    does not make its metric one that had to be measured."""
    references = {"busbw_1gib_gb_per_s": Reference.model_construct(value=1.0)}
    phase = replace(Swept(tmp_path).result(), references=references)
    assert "busbw_1gib_gb_per_s" in collective_criteria.metric_names(phase)
    assert "busbw_1gib_gb_per_s" not in collective_criteria.metric_names(
        replace(phase, resized=("args.max_bytes",))
    )


def test_wrong_element(tmp_path: Path) -> None:
    """The failure names collective, size, rank, and the first wrong element with both values."""
    first = {"index": 17, "found": "nan", "expected": 5.0}
    change = where("all_gather", 64 * MIB, 1, wrong=3, first_wrong=first)
    assert failure(collective_criteria.check_results, Swept(tmp_path, change=change).result()) == (
        "all_gather of 64 MiB on rank 1 (n0): 3 of 16777216 elements are wrong, the first is "
        "element 17: found 'nan', expected 5.0"
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_size_that_one_rank_did_not_measure(tmp_path: Path, check: Check) -> None:
    """It is named, with the rank; no check skips it."""
    swept = Swept(tmp_path, change=where("reduce_scatter", 512 * MIB, 1)).metrics()
    assert failure(check, swept.result()) == "rank 1 (n0) did not measure reduce_scatter of 512 MiB"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_rank_that_left_nothing(tmp_path: Path, check: Check) -> None:
    """Without one rank's file nothing passes."""
    swept = Swept(tmp_path).metrics()
    swept.evidence.dir.rank_events(1).unlink()
    with pytest.raises((AssertionError, Unmeasured)):
        check(swept.result())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_phase_that_left_nothing(tmp_path: Path, check: Check) -> None:
    """An empty directory passes no check, and raises nothing else."""
    swept = Swept(tmp_path)
    for rank in range(2):
        swept.evidence.dir.rank_events(rank).unlink()
    failure(check, swept.result())
    swept.evidence.dir.spec.unlink()
    failure(check, swept.result())


WRONG_KINDS: list[Any] = [None, True, "fast", "", [], {}, -1, 0, "nan", "inf", "-inf", 10**400]


@pytest.mark.parametrize("value", WRONG_KINDS, ids=lambda value: repr(value)[:8])
@pytest.mark.parametrize(
    ("key", "check"),
    [
        ("checked", collective_criteria.check_results),
        ("seconds", collective_criteria.check_sizes),
        ("own_seconds", collective_criteria.check_sizes),
        ("seconds", collective_criteria.check_metrics_follow),
        ("own_seconds", collective_criteria.check_spread),
        ("seconds", collective_criteria.check_dips),
    ],
)
def test_value_of_the_wrong_type_fails(tmp_path: Path, key: str, check: Check, value: Any) -> None:
    """A value that is not a time or a count fails, without a traceback."""
    change = where("all_reduce", 256 * MIB, 1, **{key: value})
    failure(check, Swept(tmp_path, change=change).metrics().result())


@pytest.mark.parametrize(
    "value", [value for value in WRONG_KINDS if value != 0], ids=lambda value: repr(value)[:8]
)
def test_invalid_count_of_wrong_elements(tmp_path: Path, value: Any) -> None:
    """Only the number 0 means that nothing was wrong."""
    change = where("all_reduce", 8, 0, wrong=value)
    failure(collective_criteria.check_results, Swept(tmp_path, change=change).result())


@settings(derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, max_examples=25)
@given(
    key=st.sampled_from(["what", "collective", "asked_bytes", "checked", "wrong", "own_seconds"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=4,
    ),
)
def test_no_value_in_a_record_raises(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    """Whatever a rank writes, a check passes, fails or is unmeasured."""
    change = where("all_gather", 128 * MIB, 0, **{key: value})
    result = Swept(tmp_path_factory.mktemp("run"), change=change).metrics().result()
    for check in CHECKS:
        try:
            check(result)
        except (AssertionError, Unmeasured):
            continue


@pytest.mark.parametrize(
    "facts",
    [
        {"max_bytes": None},
        {"max_bytes": "all"},
        {"max_bytes": 4},
        {"left_out": None},
        {"left_out": ["all_gather"]},
        {"left_out": {"all_reduce": "no"}},
        {"left_out": {"all_gather": "Backend nccl does not support it"}},
    ],
    ids=str,
)
def test_facts_that_leave_nothing_to_judge(tmp_path: Path, facts: dict[str, Any]) -> None:
    """Ranks cannot exempt what must be measured: NCCL has every collective."""
    failure(collective_criteria.check_sizes, Swept(tmp_path, **facts).result())


@pytest.mark.parametrize(
    "args",
    [{}, {"max_bytes": "1 GiB", "factor": 2}, {"max_bytes": 64, "factor": 1}, {"max_bytes": 64}],
    ids=str,
)
def test_arguments_without_sizes(tmp_path: Path, args: dict[str, Any]) -> None:
    """A phase whose sizes are unknown does not count as having measured them."""
    failure(collective_criteria.check_sizes, Swept(tmp_path, args=args, max_bytes=2**30).result())


def test_sizes_without_memory_are_unmeasured(tmp_path: Path) -> None:
    """Sizes for which a rank had no memory are named, and those below are still judged."""
    swept = Swept(tmp_path, max_bytes=300 * MIB, free_bytes=1200 * MIB)
    words = unmeasured(collective_criteria.check_sizes, swept.result())
    assert words == (
        "not measured (sizes): sizes above 256 MiB: the rank with the least free memory had "
        "1258291200 B"
    )
    collective_criteria.check_results(swept.result())


def test_collective_that_gloo_lacks(tmp_path: Path) -> None:
    """It is unmeasured, with torch's message; the others are judged."""
    why = "Backend gloo does not support _reduce_scatter_base"
    swept = Swept(tmp_path, backend="gloo", left_out={"reduce_scatter": why})
    assert unmeasured(collective_criteria.check_sizes, swept.result()) == (
        f"not measured (collectives): this gloo has no reduce_scatter: {why}"
    )
    collective_criteria.check_results(swept.result())


def test_ranks_that_differ_in_an_agreed_time(tmp_path: Path) -> None:
    """The slowest rank's time is the same for all."""
    swept = Swept(tmp_path, change=where("all_to_all", MIB, 1, seconds=1.0))
    words = failure(collective_criteria.check_sizes, swept.result())
    assert words.startswith("all ranks should report the same time for all_to_all of 1 MiB, but ")
    assert words.endswith(" s to 1.0 s")


def test_rank_slower_than_the_agreed_time(tmp_path: Path) -> None:
    """No rank takes longer than the agreed time."""
    swept = Swept(tmp_path, change=times(1.01, "all_to_all", MIB, rank=1))
    words = failure(collective_criteria.check_sizes, swept.result())
    assert words.startswith("all_to_all of 1 MiB took ") and " s on rank 1 (n0), more" in words
    assert words.endswith(" s reported as the slowest rank's time")


@pytest.mark.parametrize("value", [None, "nan", 201.0, 0])
def test_metric_that_does_not_follow_from_the_times(tmp_path: Path, value: Any) -> None:
    """A bandwidth that the times do not give fails, whatever it is."""
    swept = Swept(tmp_path).metrics(busbw_1gib_gb_per_s=value)
    words = failure(collective_criteria.check_metrics_follow, swept.result())
    assert words.startswith("rank 0 (n0) reports ") and "as busbw_1gib_gb_per_s; its" in words


def test_metrics_that_are_judged(tmp_path: Path) -> None:
    """The peak always; the others if they were measured or have a reference."""
    bare = Swept(tmp_path).result(
        busbw_64mib_gb_per_s={"value": 1, "lower": "-10 %", "unit": "GB/s", "source": "a test"}
    )
    assert collective_criteria.metric_names(bare) == ("busbw_gb_per_s", "busbw_64mib_gb_per_s")
    (tmp_path / "full").mkdir()
    assert len(collective_criteria.metric_names(Swept(tmp_path / "full").metrics().result())) == 7


def times(factor: float, name: str, size: int, rank: int | None = None) -> Change:
    """One collective takes `factor` times as long at one size."""

    def change(of: int, record: Record) -> Record | None:
        if (
            record.get("collective") == name
            and record["asked_bytes"] == size
            and rank in (of, None)
        ):
            slow = {"own_seconds": record["own_seconds"] * factor}
            return {**record, **slow} if rank is not None else {
                **record, **slow, "seconds": record["seconds"] * factor
            }  # fmt: skip
        return record

    return change


def test_dip_at_a_large_size(tmp_path: Path) -> None:
    """A fall of more than 5 % below a smaller size fails, and names both sizes."""
    swept = Swept(tmp_path, change=times(1.08, "all_reduce", 512 * MIB))
    words = failure(collective_criteria.check_dips, swept.result())
    assert words.startswith("the bus bandwidth of all_reduce falls from 197.06 GB/s at 256 MiB to ")
    assert words.endswith("at 512 MiB; expected a fall of 5% at most")


@pytest.mark.parametrize(
    ("factor", "name", "size"),
    [
        (1.04, "all_reduce", 512 * MIB),
        (3.0, "all_reduce", 32 * MIB),
        (3.0, "all_reduce", 64 * MIB),
        (1.3, "all_to_all", 512 * MIB),
    ],
    ids=["small", "below_64_mib", "first_judged", "all_to_all"],
)
def test_falls_that_are_not_a_fault(tmp_path: Path, factor: float, name: str, size: int) -> None:
    """Within 5 %, below the first judged size, or in all-to-all nothing fails."""
    collective_criteria.check_dips(Swept(tmp_path, change=times(factor, name, size)).result())


def test_rank_slower_than_the_others(tmp_path: Path) -> None:
    """At a large size more than 10 % fails and names both ranks; at a small one nothing fails."""
    swept = Swept(tmp_path, 1, 4, change=times(1.2, "all_gather", 64 * MIB, rank=2))
    words = failure(collective_criteria.check_spread, swept.result())
    assert words.startswith("all_gather of 64 MiB took 0.") and " ms on rank 2 (n0) and " in words
    assert words.endswith("; expected within 10% of each other")
    for factor, size, name in ((1.05, 64 * MIB, "near"), (3.0, 32 * MIB, "below")):
        (tmp_path / name).mkdir()
        change = times(factor, "all_gather", size, rank=2)
        collective_criteria.check_spread(Swept(tmp_path / name, change=change).result())


@pytest.mark.parametrize("check", OF_A_NETWORK)
def test_gloo_says_nothing_about_a_network(tmp_path: Path, check: Check) -> None:
    """Its times are not judged, whatever they are, and the reason is given."""
    for name, change in (("sound", None), ("slow", times(9, "all_reduce", 512 * MIB, rank=1))):
        (tmp_path / name).mkdir()
        keys: dict[str, Any] = {"change": change} if change else {}
        words = unmeasured(check, Swept(tmp_path / name, backend="gloo", **keys).result())
        assert words.startswith("not measured (bandwidth): the ranks talked over gloo, on shared")


@pytest.mark.parametrize("check", OF_A_NETWORK)
def test_virtual_nodes_say_nothing_about_a_network(tmp_path: Path, check: Check) -> None:
    """Over the loopback of one machine nothing is judged; on a single node, everything is."""
    (tmp_path / "one").mkdir()
    check(Swept(tmp_path / "one", 1, 2, backend_of_job="local").result())
    several = Swept(tmp_path, 2, 1, backend_of_job="local")
    assert "the nodes are virtual" in unmeasured(check, several.result())


@pytest.mark.parametrize("check", OF_A_NETWORK)
def test_ladder_without_large_sizes(tmp_path: Path, check: Check) -> None:
    """Without a large size, bandwidth is unmeasured."""
    args = {**ARGS, "max_bytes": 32 * MIB}
    assert "64 MiB" in unmeasured(check, Swept(tmp_path, args=args).result())


def test_nan_is_not_a_rounding_error() -> None:
    """NaN never satisfies the comparison of metrics."""
    assert not math.isclose(math.nan, math.nan, rel_tol=bandwidth.ROUNDING)


@pytest.mark.parametrize(
    ("name", "asked", "ranks", "measured"),
    [
        ("all_reduce", 8, 3, 8),
        ("all_gather", 8, 2, 0),
        ("all_gather", 32, 2, 32),
        ("reduce_scatter", 2**20, 3, 262_140 * 4),
        ("all_to_all", 127, 8, 0),
    ],
)
def test_sizes_are_rounded_as_in_nccl_tests(
    tmp_path: Path, name: str, asked: int, ranks: int, measured: int
) -> None:
    """Each rank's share is a multiple of 16 bytes; if none is left, nothing is expected."""
    swept = collective_criteria.Sweep(Swept(tmp_path, 1, ranks).result())
    assert collective_sizes.round_size(name, asked, ranks) == measured
    items = {(each.name, each.asked_bytes) for each in swept.measurements}
    assert ((name, asked) in items) is (measured > 0 and asked in swept.asked)
