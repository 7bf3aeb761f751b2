"""Criteria for any phase that trains: base classes for marked classes to inherit from.

    @pytest.mark.phase("my_phase", script="train_mine.py", nodes=2, gpus_per_node=2)
    class TestMine(Trained):
        def test_something_of_its_own(self, phase): ...

A phase that does not verify something (for example, it saves no checkpoint) fails that criterion
instead of skipping it: override the test if it does not apply. Without a proof of training that a
phase must have, the run is INCONCLUSIVE, not FIT. A class with its own criteria on metrics lists
these metrics in `judged_metrics`; every other metric with a reference must meet it as well. If you
override `test_throughput_…` or `test_memory_…`, set `throughput` or `memory` to the metrics that
your test checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean
from typing import ClassVar

import pytest

from ..evidence.gpu_model import ANY_GPU, is_gpu_model
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult, find_unmatched_interfaces
from . import (
    finite_values,
    gpu_past,
    outvoted_ranks,
    repeated_passes,
    resumption,
    stragglers,
    training_proofs,
    twin_run,
    workload,
)
from .transport_sides import Transports

# The loss must fall by this share from its first steps to its last: the programs' data is
# learnable, while with random targets the loss would not change. Batches differ, so several
# steps are averaged: a tenth of all, at least five.
LOSS_FALL = 0.05
LOSS_STEPS = 5
VERSION_FIELDS = ("python", "torch", "cuda", "nccl")


@dataclass(frozen=True, repr=False)
class PhaseView(PhaseResult):
    """A phase's evidence, with the checks that need more than the evidence: the transports that the
    cluster expects, and the phase's past runs.

    A subclass, so that it can be used wherever a PhaseResult is.
    """

    @cached_property
    def transports(self) -> Transports:
        """NCCL's connections, inside nodes and between them."""
        return Transports(self)

    def check_gradients(self) -> None:
        """The gradients that each rank applied are the mean over all ranks."""
        __tracebackhide__ = True
        training_proofs.check_gradients(self)

    def check_data(self) -> None:
        """Each data-parallel replica trained on data of its own."""
        __tracebackhide__ = True
        workload.check_data(self)

    def check_reload(self) -> None:
        """Every rank read the checkpoint back into a new model, bit for bit."""
        __tracebackhide__ = True
        training_proofs.check_reload(self)

    def check_past(self) -> None:
        """No metric is worse than in this phase's past runs on the same hardware and versions.

        Unmeasured if there is not enough history, or if the profile only warns.
        """
        __tracebackhide__ = True
        from .past_criterion import judge_past

        judge_past(self)


def view_phase(result: PhaseResult) -> PhaseView:
    """The same evidence, as a view for criteria."""
    return PhaseView(**{field.name: getattr(result, field.name) for field in fields(PhaseResult)})


class Started:
    """The job started as requested."""

    def test_every_node_is_allocated_once(self, phase: PhaseView) -> None:
        names = [node.name for node in phase.nodes]
        assert len(set(names)) == len(names) == phase.spec["nodes"], names

    def test_all_ranks_are_done(self, phase: PhaseView) -> None:
        assert phase.ranks_done == phase.world_size

    def test_world_size_is_the_one_asked_for(self, phase: PhaseView) -> None:
        sizes = {rank: record.get("world_size") for rank, record in phase.events("group").items()}
        assert sizes == dict.fromkeys(range(phase.world_size), phase.world_size)

    def test_all_ranks_passed_the_barrier(self, phase: PhaseView) -> None:
        assert sorted(phase.events("barrier")) == list(range(phase.world_size))

    def test_every_rank_has_a_device_of_its_own(self, phase: PhaseView) -> None:
        for rank in phase.ranks:  # if there are several devices, it selects one
            expected = rank.rank % int(phase.spec["ranks_per_node"])
            assert rank.local_rank == expected, (
                f"{rank} uses {rank.local_rank} as its LOCAL_RANK, expected {expected}; does its "
                "program use RANK instead?"
            )
        devices = [(rank.node, rank.device) for rank in phase.ranks]
        kinds = {device.split(":")[0] for _, device in devices}
        assert len(kinds) == 1, f"ranks use different kinds of device: {devices}"
        if phase.spec["device"] == "cuda" or kinds == {"cuda"}:
            assert kinds == {"cuda"}
            assert len(set(devices)) == phase.world_size, f"ranks share a device: {devices}"
        wanted = phase.spec.get("gpu")
        if kinds == {"cuda"} and wanted not in ANY_GPU:
            models = {str(rank): rank.device_name for rank in phase.ranks}
            assert all(is_gpu_model(name, wanted) for name in models.values()), (
                f"expected {wanted}: {models}"
            )
            assert len(set(models.values())) == 1, (
                f"every GPU matches {wanted}, but the models differ: {models}"
            )

    def test_pinned_interfaces_are_on_every_node(self, phase: PhaseView) -> None:
        """The interfaces that NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA name exist."""
        unknown = [n.name for n in phase.nodes if not isinstance(n.facts.get("interfaces"), dict)]
        if unknown:
            raise Unmeasured("environment", f"{', '.join(unknown)} reported no interfaces")
        missing = find_unmatched_interfaces(phase)
        assert not missing, "\n".join(map(str, missing))

    def test_all_ranks_run_the_versions_expected(self, phase: PhaseView) -> None:
        """All ranks run the same versions, and the ones in the cluster's `expect`."""
        for name in VERSION_FIELDS:
            versions = {rank.rank: rank.version(name) for rank in phase.ranks}
            assert len(set(versions.values())) == 1, f"ranks differ in {name}: {versions}"
        for name, wanted in (phase.expect.versions if phase.expect else {}).items():
            for place, version in phase.versions(name).items():
                assert version is not None and fnmatchcase(version, wanted), (
                    f"{place} runs {name} {version}, expected {wanted}"
                )

    def test_devices_reach_their_peaks(self, phase: PhaseView) -> None:
        """No device gives a wrong answer, or is slower than its peers, before it trains."""
        from . import device_peaks  # loads what judges nodes: collection must be fast

        device_peaks.check_peaks(phase)

    def test_hardware_stays_healthy(self, phase: PhaseView) -> None:
        """No GPU or RDMA port counted damage during the job, and each rail carried its share."""
        from . import hardware_health  # loads what judges nodes: collection must be fast

        hardware_health.check_health(phase)

    def test_metrics_are_as_in_the_past(self, phase: PhaseView) -> None:
        """No metric is worse than in past runs of the phase on the same hardware and versions."""
        phase.check_past()

    def test_other_references_are_met(self, phase: PhaseView) -> None:
        """Every metric with a reference meets it, unless another criterion judges that metric."""
        names = sorted(set(phase.references) - set(self.judged_metrics(phase)))
        if not names:  # `require: references` is met by the criteria that judge single metrics
            pytest.skip("every metric with a reference is judged by another criterion")
        missed = [words for name in names if (words := _describe_miss(phase, name))]
        if missed:
            fail("\n".join(missed))

    def judged_metrics(self, phase: PhaseView) -> tuple[str, ...]:
        """The metrics whose references other criteria of the class check."""
        return ()


class Trained(Started):
    """The job trained: steps, loss, gradients, replicas, data, throughput, memory, checkpoint."""

    throughput: ClassVar[tuple[str, ...]] = ("steps_per_s", "samples_per_s")
    memory: ClassVar[tuple[str, ...]] = ("peak_memory_gib",)

    def test_all_steps_are_done(self, phase: PhaseView) -> None:
        steps = phase.args.get("steps", phase.args.get("max_steps"))
        for rank in phase.ranks:
            loops = len(list(rank.events.named("step_times")))
            assert loops < 2, (
                f"{rank} trained in {loops} loops of rank.steps, of which only the last is proven "
                f"and judged; expected one loop of all {steps} steps"
            )
        assert phase.steps_done() == dict.fromkeys(range(phase.world_size), steps)

    def test_loss_is_finite_on_every_rank(self, phase: PhaseView) -> None:
        """Every step's loss is finite, on each rank and averaged over all; so is every gradient
        that a program watched, on its own rank, before any reduction."""
        finite_values.check_finite_values(phase)

    def test_loss_over_all_ranks_falls(self, phase: PhaseView) -> None:
        """The loss averaged over ranks is the same on each, and falls."""
        losses = phase.losses
        count = min(max(LOSS_STEPS, len(losses) // 10), len(losses) // 2)
        assert count, f"only {len(losses)} steps; expected at least 2"
        first, last = fmean(losses[:count]), fmean(losses[-count:])
        assert last < first - LOSS_FALL * abs(first), (
            f"the loss went from {first:.4g} to {last:.4g}; expected a fall of at "
            f"least {LOSS_FALL:.0%}"
        )

    def test_gradients_are_in_sync(self, phase: PhaseView) -> None:
        phase.check_gradients()

    def test_repeated_steps_give_the_same_gradients(self, phase: PhaseView) -> None:
        """Each rank, repeating its own pass from the same state, gets the same bits."""
        repeated_passes.check_replay(phase)

    def test_other_ranks_compute_the_same_gradients(self, phase: PhaseView) -> None:
        """Two other ranks, repeating a rank's pass from the same state, get the same bits."""
        outvoted_ranks.check_cross_replay(phase)

    def test_twin_run_gives_the_same_bits(self, phase: PhaseView) -> None:
        """Under `proof: twin`, the loop trained again from the same state gives the same bits."""
        twin_run.check_twin(phase)

    def test_replicas_stay_equal(self, phase: PhaseView) -> None:
        """All ranks hold the same parameters throughout the training."""
        training_proofs.check_replicas(phase)

    def test_ranks_train_on_their_own_data(self, phase: PhaseView) -> None:
        phase.check_data()

    def test_precision_is_the_one_declared(self, phase: PhaseView) -> None:
        workload.check_precision(phase)

    def test_samples_are_those_that_the_model_saw(self, phase: PhaseView) -> None:
        """The batch that the model got is the one that the throughput is computed from."""
        workload.check_samples(phase)

    def test_no_rank_falls_behind(self, phase: PhaseView) -> None:
        """No rank keeps the others waiting, judged by the time that each takes for its own part."""
        stragglers.check_stragglers(phase)

    def test_each_gpu_is_as_fast_as_it_was(self, phase: PhaseView) -> None:
        """No GPU takes longer for its own step than in good runs of the past."""
        gpu_past.check_gpus(phase)

    def test_throughput_meets_the_reference(self, phase: PhaseView) -> None:
        self.check_metrics(phase, *self.throughput)

    def test_memory_meets_the_reference(self, phase: PhaseView) -> None:
        self.check_metrics(phase, *self.memory)

    def judged_metrics(self, phase: PhaseView) -> tuple[str, ...]:
        return (*super().judged_metrics(phase), *self.throughput, *self.memory)

    def test_reloaded_checkpoint_equals_the_saved(self, phase: PhaseView) -> None:
        phase.check_reload()

    @staticmethod
    def check_metrics(phase: PhaseView, *names: str) -> None:
        """Each metric was measured; those with a reference meet it; without any, unmeasured."""
        __tracebackhide__ = True
        for name in names:
            value = phase.metric(name).value
            if not (math.isfinite(value) and value > 0):
                fail(f"{name} was not measured on every rank ({value})")
        referenced = [name for name in names if name in phase.references]
        for name in referenced:
            phase.metric(name).check()
        if not referenced:
            phase.metric(names[0]).check()


def _describe_miss(phase: PhaseView, name: str) -> str:
    """How a metric misses its reference; empty if it meets it."""
    metric = phase.metric(name)
    if math.isnan(metric.value) and not phase.resized:
        return f"{name} has a reference, but was not measured on every rank"
    try:
        metric.check()
    except AssertionError as error:
        return str(error)
    return ""


class Resumed:
    """A training that stopped goes on in new processes as if it had not stopped."""

    def test_training_resumes_where_it_stopped(self, phase: PhaseView) -> None:
        """The state loaded is the one saved, bit for bit, and the next batch is the next one."""
        resumption.check_resumption(phase)

    def test_training_before_the_stop_was_sound(self, phase: PhaseView) -> None:
        """What criteria prove of the last attempt's steps holds for those before as well."""
        resumption.check_earlier_attempts(phase)


class TalkedInsideNodes:
    """NCCL's connections inside nodes are those that the cluster expects."""

    def test_transports_inside_nodes_are_those_expected(self, phase: PhaseView) -> None:
        phase.transports.intra_node.check()


class TalkedBetweenNodes:
    """NCCL's connections between nodes are those that the cluster expects."""

    def test_transports_between_nodes_are_those_expected(self, phase: PhaseView) -> None:
        phase.transports.inter_node.check()
