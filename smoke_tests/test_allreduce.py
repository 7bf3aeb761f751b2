"""Collectives from 8 B to 1 GiB, inside a node and over several, and each pair of nodes."""

import pytest

import collective_criteria
from pytest_clustersmoke.criteria import (
    PhaseView,
    Started,
    TalkedBetweenNodes,
    TalkedInsideNodes,
    Trained,
    node_pairs,
)

SIZES = {"max_bytes": 2**30, "factor": 2, "iterations": 20, "warmup": 5, "repeats": 5}
SMALL = {"max_bytes": 2**21, "factor": 8, "iterations": 3, "warmup": 1, "repeats": 3}


class Swept(Started, TalkedInsideNodes):
    """All-reduce, all-gather, reduce-scatter and all-to-all: correct, and as fast as expected.

    References apply to the best of all sizes and to named sizes. They do not apply to nccl-tests'
    average over all sizes: small sizes dominate it, so it says little about a link.
    """

    @pytest.mark.detects("result-corrupted")
    def test_every_collective_is_correct(self, phase: PhaseView) -> None:
        collective_criteria.check_results(phase)

    def test_every_size_is_measured(self, phase: PhaseView) -> None:
        collective_criteria.check_sizes(phase)

    def test_bandwidths_follow_from_the_times(self, phase: PhaseView) -> None:
        collective_criteria.check_metrics_follow(phase)

    def test_bandwidth_meets_the_reference(self, phase: PhaseView) -> None:
        Trained.check_metrics(phase, *collective_criteria.metric_names(phase))

    def test_latency_meets_the_reference(self, phase: PhaseView) -> None:
        Trained.check_metrics(phase, "latency_us")

    def judged_metrics(self, phase: PhaseView) -> tuple[str, ...]:
        bandwidths = collective_criteria.metric_names(phase)
        return (*super().judged_metrics(phase), *bandwidths, "latency_us")

    def test_all_ranks_are_equally_fast(self, phase: PhaseView) -> None:
        collective_criteria.check_spread(phase)

    def test_bandwidth_does_not_fall_as_sizes_grow(self, phase: PhaseView) -> None:
        collective_criteria.check_dips(phase)


@pytest.mark.phase(
    "allreduce_1node",
    script="train_allreduce.py",
    gpus_per_node=2,
    args=SIZES,
    small=SMALL,
    needs={"whole_nodes": True, "min_ranks": 2},
)
class TestAllReduceOnOneNode(Swept):
    """Inside a node: NVLink, PCIe or shared memory."""


@pytest.mark.phase(
    "allreduce_multinode",
    script="train_allreduce.py",
    nodes=4,
    gpus_per_node=2,
    args=SIZES,
    small=SMALL,
    # Two nodes are enough; four give six pairs to compare.
    needs={"whole_nodes": True, "min_nodes": 2},
)
class TestAllReduceOverNodes(Swept, TalkedBetweenNodes):
    """Between nodes: all together, and each pair."""

    def test_every_pair_of_nodes_is_measured(self, phase: PhaseView) -> None:
        node_pairs.check_all_measured(phase)

    def test_no_pair_of_nodes_is_slow(self, phase: PhaseView) -> None:
        node_pairs.check_none_is_slow(phase)

    def test_slowest_pair_meets_the_reference(self, phase: PhaseView) -> None:
        Trained.check_metrics(phase, "pair_bandwidth_min_gb_per_s")

    def judged_metrics(self, phase: PhaseView) -> tuple[str, ...]:
        return (*super().judged_metrics(phase), "pair_bandwidth_min_gb_per_s")
