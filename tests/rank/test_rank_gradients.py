"""The gradient probe passes if gradients are reduced, and fails if they are not."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_clustersmoke.rank import gradients
from pytest_clustersmoke.rank.gradients import Probe
from tests.rank.conftest import Run
from tests.support.waiting import wait_for

BROKEN = ("bypassed", "no_sync", "summed", "one_left_out")


def verdicts(run: Run, rank: int) -> list[tuple[str, bool]]:
    facts = [record["values"] for record in run.events(rank).named("fact")]
    return [(values["fault"], values["synced"]) for values in facts if "fault" in values]


def test_probe_detects_every_missing_reduction_under_ddp(
    torchrun: Callable[..., Run],
) -> None:
    """A healthy run is in sync, dropout included; no faulty one is. How many gradients are averaged
    and compared at a time changes nothing."""
    run = torchrun("probe_ddp.py", ranks=2)
    assert run.status == 0, run.output
    expected = [("none", True), *((fault, False) for fault in BROKEN)]
    for rank in (0, 1):
        assert verdicts(run, rank) == expected * 2
    probes = list(run.events().named("gradients"))
    assert all(probe["parameters"] == probe["compared"] == 4 for probe in probes)
    assert all(probe["sensitive"] for probe in probes)
    whole, bucketed = probes[: len(expected)], probes[len(expected) :]
    factors = dict(zip(("none", *BROKEN), (probe["factor"] for probe in whole), strict=True))
    assert (factors["none"], factors["summed"]) == (pytest.approx(1), pytest.approx(2))
    assert factors["no_sync"] is factors["one_left_out"] is None
    assert whole[-1]["worst"] == "3.bias"  # the one parameter that was not reduced is named
    off = {fault: probe["off_count"] for fault, probe in zip(("none", *BROKEN), whole, strict=True)}
    assert (off["none"], off["no_sync"], off["one_left_out"]) == (0, 4, 1)
    assert whole[0]["off"] == [] and whole[-1]["off"] == ["3.bias"]
    assert [probe["worst"] for probe in bucketed[1:]] == [probe["worst"] for probe in whole[1:]]
    for figure in ("max_relative_error", "local_spread", "least_local_spread"):
        assert [probe[figure] for probe in bucketed] == pytest.approx(
            [probe[figure] for probe in whole], rel=1e-5, abs=1e-6
        )


def make_gradients() -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters with gradients: an empty one first, of several dtypes and layouts."""
    torch.manual_seed(0)
    tensors = {
        "empty": torch.randn(0, 4),
        "large": torch.randn(9, 5),
        "scalar": torch.randn(()),
        "half": torch.randn(7).bfloat16(),
        "transposed": torch.randn(3, 6).t(),
        "double": torch.randn(4).double(),
    }
    named = [(name, torch.nn.Parameter(tensor)) for name, tensor in tensors.items()]
    for _, parameter in named:
        parameter.grad = torch.randn_like(parameter)
    return named


@pytest.mark.parametrize("bucket", [20, 2**24])
def test_wrong_element_is_found_wherever_it_lies(
    single_rank: None, monkeypatch: pytest.MonkeyPatch, bucket: int
) -> None:
    """Each element in turn is wrong, or NaN, in the gradient that the engine applies: its parameter
    is named, whichever bucket and piece it lies in."""
    monkeypatch.setattr(gradients, "BUCKET", bucket)
    monkeypatch.setattr(gradients, "PIECE", 8)
    named = make_gradients()
    probe = Probe(named, lambda p: p.grad, "fp32", 1.0, world_size=1)
    local = [parameter.grad.clone() for _, parameter in named if parameter.grad is not None]
    healthy = probe.compare(list(local))
    assert healthy["synced"] and healthy["max_relative_error"] == 0
    for name, parameter in named:
        assert parameter.grad is not None
        right = parameter.grad.clone()
        for at in range(right.numel()):
            for wrong in (right.flatten()[at] + 1, float("nan")):
                changed = right.flatten().clone()
                changed[at] = wrong
                parameter.grad = changed.view(right.shape)
                compared = probe.compare(list(local))
                assert (compared["worst"], compared["synced"]) == (name, False), at
        parameter.grad = right


def test_scaled_gradient_in_half_precision_is_not_rounded_again(single_rank: None) -> None:
    """The factor that undoes an engine's scaling is applied in fp32: in bf16 a third is off by
    0.2 %."""
    parameter = torch.nn.Parameter(torch.ones(1000).bfloat16())
    applied = (torch.arange(1000) % 128 + 1).bfloat16()
    probe = Probe([("weight", parameter)], lambda _: applied, "fp32", 1 / 3, world_size=1)
    compared = probe.compare([applied.float() / 3])
    assert compared["synced"] and compared["factor"] == pytest.approx(1), compared


def test_gradient_too_large_to_be_squared_is_never_in_sync(single_rank: None) -> None:
    """Its squared norm is infinite in fp32, and beside that each error would be none."""
    parameter = torch.nn.Parameter(torch.ones(10))
    local = torch.full((10,), 1e21)
    probe = Probe([("weight", parameter)], lambda _: local * 1.001, "fp32", 1.0, world_size=1)
    assert not probe.compare([local])["synced"]


@pytest.mark.parametrize("parameters", [4, 40])
def test_comparison_takes_as_many_operators_for_more_parameters(
    single_rank: None, parameters: int
) -> None:
    """On a small model their launches cost more than their work. No number is taken to the host by
    itself, which would wait for the device."""
    counts = Counter[str]()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counts["numbers"] += "_local_scalar_dense" in str(func)
            counts["operators"] += not func.is_view
            return func(*args, **(kwargs or {}))

    named = [(str(at), torch.nn.Parameter(torch.ones(10))) for at in range(parameters)]
    for _, parameter in named:
        parameter.grad = torch.ones(10)
    probe = Probe(named, lambda p: p.grad, "fp32", 1.0, world_size=1)
    local: list[torch.Tensor | None] = [torch.ones(10) for _ in named]
    with Count():  # type: ignore[no-untyped-call]
        assert probe.compare(local)["synced"]
    assert counts["numbers"] == 0 and counts["operators"] <= 75, counts


def test_gradients_of_many_parameters_are_averaged_together(
    single_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each collective has a latency, which ranks that share a core feel: there are as many for two
    hundred small parameters as for one. A parameter larger than a bucket has one of its own."""
    sizes = Counter[int]()

    def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes[tensor.numel()] += 1
        return all_reduce(tensor, *args, **kwargs)

    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", reduce)
    monkeypatch.setattr(gradients, "BUCKET", 2000)
    named = [(str(at), torch.nn.Parameter(torch.ones(10))) for at in range(200)]
    named.insert(100, ("large", torch.nn.Parameter(torch.ones(5000))))
    probe = Probe(named, lambda _: None, "fp32", 1.0, world_size=1)
    probe.compare([torch.ones_like(parameter) for _, parameter in named])
    assert sizes == {1000: 2, 5000: 1, len(named): 1}  # the last adds up their norms


def test_buckets_are_freed_one_after_another(
    single_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a large model there may be no room for two of them: as a bucket is averaged, the last
    one is not held any more, but for the moment in which gloo's thread lets go of it."""
    held: list[weakref.ref[torch.Tensor]] = []

    def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        wait_for("the last bucket to be freed", lambda: all(each() is None for each in held))
        held.append(weakref.ref(tensor))
        return all_reduce(tensor, *args, **kwargs)

    all_reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", reduce)
    monkeypatch.setattr(gradients, "BUCKET", 20)
    named = [(str(at), torch.nn.Parameter(torch.ones(10))) for at in range(8)]
    probe = Probe(named, lambda _: None, "fp32", 1.0, world_size=1)
    probe.compare([torch.ones_like(parameter) for _, parameter in named])
    assert len(held) == 5  # four buckets and the norms


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_probe_detects_wrong_reductions_under_zero(
    torchrun: Callable[..., Run], stage: int
) -> None:
    """The probe detects removed and summing reductions; a reload detects a lost optimizer."""
    run = torchrun("probe_zero.py", "--stage", str(stage), ranks=2)
    assert run.status == 0, run.output
    for rank in (0, 1):
        assert verdicts(run, rank) == [("none", True), ("removed", False), ("summed", False)]
        # DeepSpeed's engine would load it for Muon, in seconds of CPU time.
        facts = list(run.events(rank).named("fact"))[-1]["values"]
        assert facts == {"loaded_compiler": False, "gather_ends_at_once": True}
        reload = run.only("reload", rank)
        assert not reload["equal"]
        assert all(name.startswith("optimizer.") for name in reload["mismatched"])
