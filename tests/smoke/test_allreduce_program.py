"""train_allreduce.py under real torchrun: its measurements in healthy and in faulty runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import collective_criteria
from collective_sizes import PEAKS
from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.criteria import node_pairs
from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.rank.conftest import SMOKE_TESTS
from tests.smoke.agents import Outcome, run_program

PROGRAM = SMOKE_TESTS / "train_allreduce.py"
BROKEN = Path(__file__).parent / "programs" / "broken_collective.py"
SMALL = {"max_bytes": 2**20, "factor": 2, "iterations": 2, "warmup": 1, "repeats": 2}


def run(
    directory: Path,
    *words: str,
    program: Path = PROGRAM,
    args: Mapping[str, int] = SMALL,
    **options: Any,
) -> Outcome:
    return run_program(program, directory, args, *words, **options)


def check_measured(phase: PhaseView) -> set[str]:
    """Check that every collective of this torch's gloo was measured and correct; returns them."""
    left_out = set(phase.fact("left_out"))
    collective_criteria.check_results(phase)
    collective_criteria.check_metrics_follow(phase)
    if left_out:  # gloo in torch 2.2 lacks some
        with pytest.raises(Unmeasured, match="this gloo has no"):
            collective_criteria.check_sizes(phase)
    else:
        collective_criteria.check_sizes(phase)
    return set(PEAKS) - left_out


@pytest.mark.slow
def test_two_nodes_measure_all_collectives_and_their_pair(tmp_path: Path) -> None:
    """Every collective is correct at every size on every rank; progress is marked; all ranks have
    the same metrics; both local ranks measure the pair of nodes."""
    outcome = run(tmp_path, nodes=2, per_node=2)
    assert outcome.statuses == [0, 0], outcome.output
    phase = outcome.phase
    there = check_measured(phase)
    assert {"all_reduce", "all_to_all"} <= there
    node_pairs.check_all_measured(phase)
    assert phase.backend == "gloo"
    assert "4 ranks on 2 nodes communicate over gloo" in outcome.output
    with pytest.raises(Unmeasured, match="talked over gloo"):
        collective_criteria.check_dips(phase)
    wanted = {PEAKS[name] for name in there} | {"latency_us", "busbw_1mib_gb_per_s"}
    wanted |= {"pair_bandwidth_min_gb_per_s"}
    assert set(phase.metrics()) == wanted <= set(METRICS)
    assert len({str(rank.metrics()) for rank in phase.ranks}) == 1
    # 8, 16 and 32 B of the 18 sizes are too small for four ranks; and there is one pair.
    measurements = 18 + 15 * (len(there) - 1) + 1
    for rank in phase.ranks:
        marks = read_events(rank.events.path).named("step")  # the evidence keeps only the last mark
        steps = [mark["step"] for mark in marks]
        assert steps == sorted(steps) and steps[-1] == measurements
        assert set(range(1, measurements + 1)) <= set(steps)
        measured = rank.events.named("measured")
        peers = [record["peer"] for record in measured if record["what"] == "pair"]
        assert peers == [(rank.rank + 2) % 4]


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two nodes of one rank each; some results of rank 1 are corrupt."""
    folder = tmp_path_factory.mktemp("corrupt")
    return run(folder, "corrupt", nodes=2, per_node=1, program=BROKEN)


def test_wrong_result_is_recorded_and_named(corrupt: Outcome) -> None:
    """The program runs to its end; the criterion names collective, size, rank and element."""
    assert corrupt.statuses == [0, 0], corrupt.output
    with pytest.raises(AssertionError) as failure:
        collective_criteria.check_results(corrupt.phase)
    # The 78th element of those that rank 0 sends to rank 1, from its second half of 128.
    assert str(failure.value) == (
        "all_to_all of 1 KiB on rank 1 (n1): 1 of 256 elements are wrong, the first is element "
        "77: found 'nan', expected 205.0"
    )


def test_wrong_bytes_from_a_peer_are_recorded(corrupt: Outcome) -> None:
    """Data that a rank receives from another node are checked as well."""
    with pytest.raises(AssertionError, match=r"exchange of rank 1 \(n1\) with rank 0: 1 of"):
        node_pairs.check_all_measured(corrupt.phase)


@pytest.mark.slow
def test_missing_collective_is_left_out(tmp_path: Path) -> None:
    """The others are measured; the missing one is recorded with the reason."""
    outcome = run(tmp_path, "absent", program=BROKEN)
    assert outcome.statuses == [0], outcome.output
    assert "all_to_all" not in check_measured(outcome.phase)
    assert "all_to_all_busbw_gb_per_s" not in outcome.phase.metrics()
    left_out = outcome.phase.fact("left_out")
    assert left_out["all_to_all"] == "Backend gloo does not support alltoall_base"


@pytest.mark.slow
def test_failing_collective_is_an_error(tmp_path: Path) -> None:
    """Any other error of a collective ends the program and is recorded."""
    outcome = run(tmp_path, "broken", program=BROKEN)
    assert outcome.statuses != [0] and not outcome.phase.ranks_done
    errors = outcome.phase.events("error")
    assert errors and all("Connection closed" in record["message"] for record in errors.values())


@pytest.mark.slow
def test_debug_level_detail_is_lowered(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL would add a second collective to each timing. The sizes end at
    --max-bytes, for pairs, too."""
    args = {**SMALL, "max_bytes": 256}
    outcome = run(tmp_path, nodes=2, per_node=1, args=args, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert outcome.statuses == [0, 0], outcome.output
    assert outcome.phase.fact("debug_level") == "INFO"
    check_measured(outcome.phase)
    node_pairs.check_all_measured(outcome.phase)
    assert node_pairs.Pairs(outcome.phase).size_bytes == 256
