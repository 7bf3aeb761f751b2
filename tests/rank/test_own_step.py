"""The passes that measure a rank's own step: what they show, and that they leave training alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_clustersmoke.rank import process_group
from pytest_clustersmoke.rank.checkpoint import compare_digests, digest
from pytest_clustersmoke.rank.own_step import PASSES, OwnStep
from pytest_clustersmoke.rank.proof import Proof

CPU = torch.device("cpu")
WIDTH = 64


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "barrier", lambda device: 0.0)


def build() -> torch.nn.Sequential:
    """With random numbers in the forward pass, and with buffers that it changes."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.BatchNorm1d(WIDTH),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(WIDTH, WIDTH),
    )


def batch(index: int) -> torch.Tensor:
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(index))


def measure(model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    proof = Proof(model, lambda index: model(batch(index)).square().mean(), optimizer=optimizer)
    own_step = OwnStep(proof, CPU)
    own_step.measure(3, lambda: None)
    assert own_step.typical_s is not None and own_step.typical_s > 0
    return own_step.fields()


def train(optimizer_class: Callable[..., torch.optim.Optimizer], measured: bool) -> dict[str, Any]:
    """Everything that training leaves behind; measured before two of its steps."""
    model = build()
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    for index in range(6):
        if measured and index in (2, 5):
            measure(model, optimizer)
        optimizer.zero_grad()
        model(batch(index)).square().mean().backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**state, "gradients": gradients, "random": torch.get_rng_state()}


@pytest.mark.parametrize(
    "optimizer_class",
    [
        torch.optim.AdamW,
        torch.optim.Adam,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        lambda parameters, lr: torch.optim.Adam(parameters, lr=torch.tensor(lr), foreach=False),
    ],
    ids=["AdamW", "Adam", "SGD", "rate as a tensor"],
)
def test_training_is_the_same_bit_for_bit(
    optimizer_class: Callable[..., torch.optim.Optimizer],
) -> None:
    """Weights, buffers, moments, gradients and random state are those of training without it."""
    with_it, without = (train(optimizer_class, measured) for measured in (True, False))
    torch.testing.assert_close(with_it, without, rtol=0, atol=0)


def test_each_pass_has_the_times_of_its_parts() -> None:
    """Wall and CPU seconds of each part add up to those of the pass."""
    model = build()
    fields = measure(model, torch.optim.AdamW(model.parameters()))
    parts = fields["parts"]
    assert list(parts) == ["forward", "backward", "optimizer"]
    for clock in ("seconds", "cpu_seconds"):
        assert len(fields[clock]) == PASSES
        sums = [sum(part[clock][at] for part in parts.values()) for at in range(PASSES)]
        assert fields[clock] == pytest.approx(sums)


class Clock:
    """Stands in for `time`: it moves only while something works on purpose, so that what else runs
    on this machine cannot show in the times."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self) -> None:
        self.now += 0.5

    def process_time(self) -> float:
        return self.now

    perf_counter = process_time


def test_slow_backward_and_slow_optimizer_show_in_their_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hook on a parameter, and a class of optimizers whose step takes long."""
    clock = Clock()
    monkeypatch.setattr("pytest_clustersmoke.rank.own_step.time", clock)

    class SlowSgd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            clock.work()
            return super().step(closure)

    def parts(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
        proof = Proof(model, lambda index: model(batch(index)).square().mean(), optimizer=optimizer)
        passes = OwnStep(proof, CPU)
        passes.measure(3, lambda: None)
        times = passes.fields()["parts"]
        assert all(part["seconds"] == part["cpu_seconds"] for part in times.values())
        return {name: part["cpu_seconds"] for name, part in times.items()}

    none, slow = [0.0] * PASSES, [0.5] * PASSES
    model = build()
    fast, slow_sgd = torch.optim.SGD(model.parameters()), SlowSgd(model.parameters())
    assert parts(model, fast) == {"forward": none, "backward": none, "optimizer": none}
    assert parts(model, slow_sgd) == {"forward": none, "backward": none, "optimizer": slow}
    next(model.parameters()).register_hook(lambda _: clock.work())
    assert parts(model, fast) == {"forward": none, "backward": slow, "optimizer": none}


class Wrapper:
    """As DeepSpeed and accelerate wrap an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class Unusual(torch.optim.SGD):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)


class NeedsSparseGradients(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("does not support dense gradients")


def test_optimizer_is_found_in_a_wrapper_or_by_a_function() -> None:
    """One that cannot be built anew is left out, as are none and those that need more than
    gradients to step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters())
    for found in (Wrapper(optimizer), lambda: Wrapper(optimizer)):
        assert "optimizer" in measure(model, found)["parts"]
    needs = (torch.optim.LBFGS(model.parameters()), NeedsSparseGradients(model.parameters(), 0.1))
    for missing in (Unusual(model), *needs, None, lambda: None):
        assert list(measure(model, missing)["parts"]) == ["forward", "backward"]


def test_parameters_on_a_disk_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3 with NVMe offload, as DeepSpeed marks its parameters: no rank begins to gather them,
    and nothing that holds no values is hashed as if it did."""
    model = torch.nn.Sequential(build())
    for parameter in model.parameters():
        marks = {"ds_tensor": torch.tensor(1.0).half(), "nvme_swapper": object()}
        marks |= {"ds_shape": parameter.shape, "ds_numel": parameter.numel()}
        vars(parameter).update(marks)
    monkeypatch.setattr(process_group, "barrier", lambda device: pytest.fail("it waits"))
    own_step = OwnStep(Proof(model, lambda index: model(batch(index)).sum()), CPU)
    own_step.measure(3, lambda: pytest.fail("it repeats"))
    assert "offloaded to a disk (NVMe)" in own_step.fields()["not_measured"]
    assert own_step.typical_s is None
    first, second = (digest([*model.parameters(), number]) for number in (1, 2))
    assert compare_digests(first, first) == {
        "equal": True,
        "tensors": 0,
        "mismatched": [],
        "not_measured": own_step.fields()["not_measured"],
    }
    assert compare_digests(first, second)["mismatched"] == ["[6]"]


def test_micro_batches_are_one_pass() -> None:
    """The losses of a step's micro batches are computed and passed back in turn."""
    model = build()
    calls: list[int] = []

    def losses(index: int) -> Any:
        for micro in range(3):
            calls.append(micro)
            yield model(batch(index)).square().mean()

    own_step = OwnStep(Proof(model, losses), CPU)
    own_step.measure(0, lambda: None)
    assert calls == [0, 1, 2] * (PASSES + 1)
    assert len(own_step.fields()["seconds"]) == PASSES


def test_reentrant_checkpointing_is_not_measured() -> None:
    """It cannot be repeated, so there are no times, and the reason is recorded."""
    model = build()

    def loss(index: int) -> Any:
        inputs = batch(index).requires_grad_()
        return checkpoint(model, inputs, use_reentrant=True).square().mean()

    own_step = OwnStep(Proof(model, loss, optimizer=torch.optim.SGD(model.parameters())), CPU)
    for index in (0, 1):
        own_step.measure(index, lambda: None)
    assert own_step.typical_s is None
    assert list(own_step.fields()) == ["not_measured"]
    assert "reentrant" in own_step.fields()["not_measured"]


def test_large_parameters_are_copied_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer steps on a bucket; its time counts for all elements."""
    monkeypatch.setattr("pytest_clustersmoke.rank.own_step.BUCKET_ELEMENTS", WIDTH * 10)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    own_step = OwnStep(
        Proof(
            model, lambda _: model(batch(0)).mean(), optimizer=torch.optim.Adam(model.parameters())
        ),
        CPU,
    )
    bucket = own_step._fill_bucket()
    assert bucket is not None and bucket.scale == pytest.approx(WIDTH / 10)
    (copy,) = bucket.optimizer.param_groups[0]["params"]
    assert copy.shape == (10, WIDTH) and copy.grad.shape == copy.shape
