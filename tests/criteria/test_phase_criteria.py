"""The base classes of criteria, judged from the nodes' evidence."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.criteria import Started, Trained
from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import find_unmatched_interfaces
from pytest_clustersmoke.evidence.run_directory import write_json
from tests.support.evidence import Evidence, make_profile

ETH = {"eth0": {"ipv4": ["10.0.0.1"], "ipv6": []}, "lo": {"ipv4": ["127.0.0.1"], "ipv6": []}}
IB = {"ibp65s0": {"ipv4": ["10.1.0.1"], "ipv6": []}, "lo": {"ipv4": ["127.0.0.1"], "ipv6": []}}


def ran(folder: Path, *interfaces: object) -> PhaseView:
    """A phase over NCCL whose ranks all had NCCL_SOCKET_IFNAME=eth0."""
    evidence = Evidence(folder, nodes=len(interfaces)).started("nccl")
    for rank, interface_facts in enumerate(interfaces):
        facts = {"node": f"n{rank}", "variables": {"NCCL_SOCKET_IFNAME": "eth0"}}
        write_json(evidence.dir.node_facts(rank), {**facts, "interfaces": interface_facts})
    return evidence.result()


def test_pinned_interface_on_all_nodes_passes(tmp_path: Path) -> None:
    """On identical nodes it is fine to pin an interface."""
    result = ran(tmp_path, ETH, ETH)
    Started().test_pinned_interfaces_are_on_every_node(result)
    assert find_unmatched_interfaces(result) == []


def test_pinned_interface_that_a_node_lacks_fails(tmp_path: Path) -> None:
    """The failure names the node, the variable, its value, and what the node has."""
    with pytest.raises(AssertionError) as failure:
        Started().test_pinned_interfaces_are_on_every_node(ran(tmp_path, ETH, IB))
    assert "n1: NCCL_SOCKET_IFNAME=eth0 (set on the node) selects no interface" in str(
        failure.value
    )
    assert "ibp65s0, lo" in str(failure.value) and "n0" not in str(failure.value)


def test_node_that_reported_no_interfaces_is_unmeasured(tmp_path: Path) -> None:
    """A node whose interfaces are unknown is not judged."""
    with pytest.raises(Unmeasured, match="n1 reported no interfaces"):
        Started().test_pinned_interfaces_are_on_every_node(ran(tmp_path, ETH, None))


def test_steps_in_several_loops_are_more_than_asked_for(tmp_path: Path) -> None:
    """Each loop's record replaces that of the loop before, so a bad first epoch would not show."""
    evidence = Evidence(tmp_path, args={"steps": 3}).started()
    done = ("stage", {"name": "train", "state": "end"}), ("step_times", {"seconds": [0.1] * 3})
    evidence.rank(0, ("step", {"step": 3, "steps": 3}), *done)
    Trained().test_all_steps_are_done(evidence.result())
    with pytest.raises(AssertionError, match=r"rank 0 \(n0\) trained in 2 loops of rank.steps"):
        Trained().test_all_steps_are_done(evidence.rank(0, *done).result())


@pytest.mark.parametrize(
    ("first", "last", "falls"),
    [
        (2.0, 1.8, True),
        (2.0, 1.95, False),
        (-1.0, -1.1, True),
        (-1.0, -0.94, False),
        (0.0, 0.0, False),
    ],
)
def test_loss_below_zero_must_fall_as_well(
    tmp_path: Path, first: float, last: float, falls: bool
) -> None:
    """A log-likelihood that rises from -1 to -0.94 has not fallen."""
    losses = [first] * 5 + [last] * 5
    phase = Evidence(tmp_path).started().each("losses", mean=losses).result()
    if falls:
        Trained().test_loss_over_all_ranks_falls(phase)
        return
    with pytest.raises(AssertionError, match="expected a fall of at least 5%"):
        Trained().test_loss_over_all_ranks_falls(phase)


def measured(folder: Path, values: dict[str, float], **references: tuple[str, float]) -> PhaseView:
    """A phase whose two ranks recorded these metrics; a reference is its bound and its value."""
    evidence = Evidence(folder, ranks_per_node=2).started().each("metrics", values=values)
    evidence.each("fact", values={"left_out": {}})
    profile = make_profile(folder, references={"small": bounds(references)} if references else {})
    return evidence.result(profile)


def bounds(references: dict[str, tuple[str, float]]) -> dict[str, Any]:
    return {
        name: {
            "value": value,
            bound: "-10 %" if bound == "lower" else "+10 %",
            "unit": METRICS[name].unit,
            "source": "a test",
        }
        for name, (bound, value) in references.items()
    }


def test_reference_without_a_criterion_is_not_ignored(tmp_path: Path) -> None:
    """One criterion fails for all such metrics that are missed or unmeasured, and names them."""
    values = {"steps_per_s": 1.0, "steady_steps_per_s": 1.0, "final_loss": 0.5}
    result = measured(
        tmp_path,
        {**values, "step_time_p95_s": 3.0},
        steps_per_s=("lower", 9.0),
        steady_steps_per_s=("lower", 10.0),
        step_time_p95_s=("upper", 1.5),
        step_time_p50_s=("upper", 1.0),
        final_loss=("upper", 0.5),
    )
    with pytest.raises(AssertionError) as failure:
        Trained().test_other_references_are_met(result)
    steady, p50, p95 = str(failure.value).splitlines()
    assert steady.startswith("steady_steps_per_s is 1.000 steps/s: 90.0 % below the reference")
    assert p50 == "step_time_p50_s has a reference, but was not measured on every rank"
    assert p95.startswith("step_time_p95_s is 3.000 s: 100.0 % above the reference")
    assert result.judged == {"references"}
    with pytest.raises(AssertionError, match=r"\nsteps_per_s is 1.000 steps/s: 88.9 % "):
        Started().test_other_references_are_met(result)


def test_references_that_are_met_pass(tmp_path: Path) -> None:
    """A metric within its bounds passes, and counts as a reference that was judged."""
    result = measured(tmp_path, {"final_loss": 0.5}, final_loss=("upper", 0.5))
    Trained().test_other_references_are_met(result)
    assert result.judged == {"references"}


@pytest.mark.parametrize("value", [1.0, 9.0])
def test_reference_of_other_sizes_judges_nothing(tmp_path: Path, value: float) -> None:
    """A reference holds for the sizes that it was measured at: a phase that --cluster-set changed
    neither meets nor misses it, and criteria that need a reference are not measured."""
    values = {"steps_per_s": value, "samples_per_s": 1.0, "peak_memory_gib": 1.0, "final_loss": 1.0}
    whole = measured(
        tmp_path,
        values,
        steps_per_s=("lower", 9.0),
        peak_memory_gib=("upper", 9.0),
        final_loss=("upper", 9.0),
        step_time_p50_s=("upper", 9.0),
    )
    phase = replace(whole, resized=("nodes", "args.layers"))
    criteria = Trained()
    for judge in (
        criteria.test_throughput_meets_the_reference,
        criteria.test_memory_meets_the_reference,
        criteria.test_other_references_are_met,
    ):
        with pytest.raises(Unmeasured, match="reference of other sizes") as unmeasured:
            judge(phase)
        assert unmeasured.value.kind == "references"
        assert "(--cluster-set: nodes, args.layers)" in str(unmeasured.value)
    assert phase.judged == set()


@pytest.mark.parametrize(
    ("resized", "words"),
    [
        (
            ("proof: twin",),
            "1.000 steps/s; the phase trains under `proof: twin`, .* of another proof",
        ),
        (
            ("nodes", "proof: twin"),
            r"reference of other sizes \(--cluster-set: nodes, proof: twin\)",
        ),
    ],
)
def test_reference_of_another_proof_judges_nothing(
    tmp_path: Path, resized: tuple[str, ...], words: str
) -> None:
    """Under `proof: twin` every step does more work; the reason says so in words."""
    phase = replace(
        measured(tmp_path, {"steps_per_s": 1.0}, steps_per_s=("lower", 9.0)), resized=resized
    )
    with pytest.raises(Unmeasured, match=words):
        phase.metric("steps_per_s").check()


def test_without_another_reference_the_criterion_skips(tmp_path: Path) -> None:
    """It is not a measurement that `require` could miss."""
    result = measured(tmp_path, {"steps_per_s": 1.0}, steps_per_s=("lower", 9.0))
    with pytest.raises(pytest.skip.Exception) as skipped:
        Trained().test_other_references_are_met(result)
    assert not isinstance(skipped.value, Unmeasured) and result.judged == set()


def classes() -> Iterator[type[Started]]:
    """The phases of the suite that ships."""
    for name in ("mlp", "ddp", "zero", "lora_sft", "allreduce"):
        module = importlib.import_module(f"smoke_tests.test_{name}")
        for _, criteria in inspect.getmembers(module, inspect.isclass):
            if issubclass(criteria, Started) and criteria.__name__.startswith("Test"):
                yield criteria


@pytest.mark.parametrize("held", list(classes()), ids=lambda criteria: criteria.__name__)
def test_each_missed_reference_fails_one_criterion(tmp_path: Path, held: type[Started]) -> None:
    """In every phase that ships, a metric that misses its reference fails one criterion."""
    missed = {
        name: ("lower", 2.0) if kind.higher_is_better else ("upper", 0.5)
        for name, kind in METRICS.items()
    }
    result = measured(tmp_path, dict.fromkeys(METRICS, 1.0), **missed)
    for name, reference in result.references.items():
        red = reds(held, replace(result, references={name: reference}))
        assert len(red) == 1 and f"{name} is 1.000" in red[0]


def reds(held: type[Started], result: PhaseView) -> list[str]:
    """The messages of those of the class's criteria on references that fail."""
    messages = []
    for name, criterion in inspect.getmembers(held, inspect.isfunction):
        if name.startswith("test_") and "reference" in name:
            try:
                criterion(held(), result)
            except AssertionError as error:
                messages.append(str(error))
            except pytest.skip.Exception:
                pass
    return messages


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        *[(name, True) for name in ("A100", "a100 80gb", "NVIDIA A100-SXM4-80GB", "any")],
        *[(name, False) for name in ("H100", "A10", "A100 40GB", "A100 MIG", "NVIDIA")],
    ],
)
def test_gpu_of_the_profile_may_be_abbreviated(model: str, fits: bool, tmp_path: Path) -> None:
    """The criterion takes the same names for the profile's GPU as the check on the node."""
    start = {"rank": 0, "node": "n0", "local_rank": 0, "device": "cuda:0"}
    start["device_name"] = "NVIDIA A100-SXM4-80GB"
    result = Evidence(tmp_path).rank(0, ("start", start)).result()
    result = replace(result, spec={**result.spec, "gpu": model, "device": "cuda"})
    if fits:
        Started().test_every_rank_has_a_device_of_its_own(result)
    else:
        with pytest.raises(AssertionError, match=f"expected {model}"):
            Started().test_every_rank_has_a_device_of_its_own(result)
