"""Steps that are proven: which are drawn, and that training is left as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_clustersmoke.evidence.telemetry import UNNAMED_KERNELS
from pytest_clustersmoke.rank.proof import Proof, StepProver, draw_steps
from pytest_clustersmoke.rank.replay import (
    DETERMINISTIC_PASSES,
    Randomness,
    Replay,
    deterministic_kernels,
    fingerprint,
)

WIDTH, STEPS = 8, 6


def train(proven: set[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Everything that training leaves behind, and the proofs of these steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [
        torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed))
        for seed in range(STEPS)
    ]
    proof = Proof(model, lambda index: model(batches[index]).square().mean())
    prover, proofs = StepProver(proof, proven, 1, lambda: None), []
    for index in range(STEPS):
        prover.begin(index)
        optimizer.zero_grad()
        model(batches[index]).square().mean().backward()
        if index in proven:
            proofs.append(prover.prove(index))
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**state, "random": torch.get_rng_state()}, proofs


def test_training_is_the_same_bit_for_bit(single_rank: None) -> None:
    """Weights, buffers, moments and random state are those of training without a proof, and a
    model with dropout and batch norm repeats its own pass."""
    with_it, proofs = train({0, 2, STEPS - 1})
    without, _ = train(set())
    torch.testing.assert_close(with_it, without, rtol=0, atol=0)
    assert [proof["differing_count"] for proof in proofs] == [0, 0, 0]
    assert all(proof["gradients"]["synced"] and proof["samples"] == 16 for proof in proofs)


def test_batch_of_the_repetition_is_noted(single_rank: None) -> None:
    """It is the step's own, or another that the program drew: the two tell a device that is wrong
    from a program that is."""
    model = torch.nn.Linear(WIDTH, 1)
    batches = [torch.randn(4, WIDTH) for _ in range(3)]
    drawn = iter([batches[1], *[batches[2]] * 20])
    proof = Proof(model, lambda index: model(next(drawn)).square().mean())
    prover = StepProver(proof, {0, 1}, 1, lambda: None)
    records = []
    for index in range(2):
        prover.begin(index)
        model.zero_grad()
        model(batches[1]).square().mean().backward()
        records.append(prover.prove(index))
    assert records[0]["differing_count"] == 0 and records[1]["differing_count"] == 2
    assert records[0]["repeated_batch"] == records[0]["batch"] == records[1]["batch"]
    assert records[1]["repeated_batch"] not in (None, records[1]["batch"])


@pytest.mark.parametrize(
    ("extra", "masters", "outside"), [(0, False, 0), (2, False, 2), (0, True, 0), (2, True, 0)]
)
def test_trained_parameters_beside_the_model_are_counted(
    single_rank: None, extra: int, masters: bool, outside: int
) -> None:
    """An engine may give the optimizer masters or parts of them in place of the parameters."""
    model, batch = torch.nn.Linear(WIDTH, 1), torch.randn(4, WIDTH)
    trained = [*model.parameters()]
    held = [torch.nn.Parameter(p.detach().clone()) for p in trained] if masters else trained
    beside = [torch.nn.Parameter(torch.zeros(1)) for _ in range(extra)]
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    optimizer = torch.optim.SGD([*held, *beside, frozen])
    proof = Proof(model, lambda _: model(batch).square().mean(), optimizer=optimizer)
    prover = StepProver(proof, {0}, 1, lambda: None)
    prover.begin(0)
    model(batch).square().mean().backward()
    assert prover.prove(0)["outside"] == outside


class Counting(torch.nn.Module):
    """Its forward pass changes a buffer, and computes with it."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.register_buffer("count", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> Any:
        self.count += 1
        return self.layer(inputs) * self.count


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_step_is_repeated_from_the_buffers_that_it_began_with(
    single_rank: None, micro_batches: int
) -> None:
    """As a spectral norm has them; afterwards they are as the step left them."""
    model, batch = Counting(), torch.randn(4, WIDTH)

    def losses(_: int) -> Iterator[torch.Tensor]:
        for _ in range(micro_batches):
            yield model(batch).square().mean()

    prover = StepProver(Proof(model, losses), {0}, 1, lambda: None)
    prover.begin(0)
    for loss in losses(0):
        loss.backward()
    fields = prover.prove(0)
    assert (fields["differing_count"], fields["unequal_count"]) == (0, 0)
    assert fields["gradients"]["synced"] and model.count == 1 + micro_batches


def test_sparse_gradients_are_proven(single_rank: None) -> None:
    """Those of an embedding, of which a batch has some rows twice."""
    table = torch.nn.Embedding(8, 4, sparse=True)
    tokens = torch.tensor([[1, 2, 2], [5, 1, 7]])
    proof = Proof(table, lambda _: table(tokens).square().sum())
    prover = StepProver(proof, {0}, 1, lambda: None)
    prover.begin(0)
    table(tokens).square().sum().backward()
    fields = prover.prove(0)
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    assert fields["differing_count"] == 0 and fields["gradients"]["synced"]


class Recomputed(torch.nn.Module):
    """A model that recomputes its activations in the backward pass."""

    def __init__(self, use_reentrant: bool, frozen: bool) -> None:
        super().__init__()
        self.outer = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(not frozen)
        self.inner, self.use_reentrant = torch.nn.Linear(WIDTH, WIDTH), use_reentrant

    def forward(self, inputs: torch.Tensor) -> Any:
        inputs = self.outer(inputs)
        if not inputs.requires_grad:  # as adapters on a frozen embedding need it
            inputs.requires_grad_()
        return checkpoint(self.inner, inputs, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_reentrant_checkpointing_is_not_measured(
    single_rank: None, use_reentrant: bool, frozen: bool
) -> None:
    """The reason is recorded, whether torch raises an error or leaves the parameters out; the
    gradients that the engine applies stay as they are."""
    model = Recomputed(use_reentrant, frozen)
    batch = torch.randn(16, WIDTH)
    prover = StepProver(Proof(model, lambda _: model(batch).square().mean()), {0}, 1, lambda: None)
    prover.begin(0)
    model(batch).square().mean().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [torch.clone(parameter.grad) for parameter in trained if parameter.grad is not None]
    fields = prover.prove(0)
    after = [parameter.grad for parameter in trained]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert (fields["samples"], fields["gradients"]["precision"]) == (16, "fp32")
    reason = "reentrant checkpointing cannot be replayed (use_reentrant=False can)"
    assert fields.get("not_measured") == (reason if use_reentrant else None)
    assert ("replayed" in fields) is not use_reentrant


def test_other_errors_of_a_pass_are_raised(single_rank: None) -> None:
    """Only reentrant checkpointing makes a step unrepeatable; a mistake ends the rank."""
    model = torch.nn.Linear(WIDTH, WIDTH)
    prover = StepProver(Proof(model, lambda _: torch.zeros(1)), {0}, 1, lambda: None)
    prover.begin(0)
    model(torch.randn(4, WIDTH)).sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        prover.prove(0)


@pytest.mark.parametrize(
    ("count", "drawn", "proven"), [(1, 3, 1), (2, 3, 2), (10, 3, 3), (30, 3, 5)]
)
def test_first_and_last_step_and_some_between_are_drawn(
    count: int, drawn: int, proven: int
) -> None:
    """Of a short loop at most a fifth is drawn; the seed decides which steps."""
    steps = draw_steps(count, drawn, "seed")
    assert len(steps) == len(set(steps)) == proven
    assert (steps[0], steps[-1]) == (0, count - 1)
    assert steps == draw_steps(count, drawn, "seed")
    many = {tuple(draw_steps(count, drawn, f"seed {number}")) for number in range(20)}
    assert (len(many) > 1) == (count >= 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fingerprint_depends_on_the_values_alone(dtype: torch.dtype) -> None:
    """A view that begins anywhere in its storage has the fingerprint of a copy; one bit more or
    less changes it."""
    storage = torch.randn(33, generator=torch.Generator().manual_seed(1)).to(dtype)
    view = storage[1:]
    assert int(fingerprint(view)) == int(fingerprint(view.clone()))
    flipped = view.clone()
    flipped.view(torch.uint8)[0] ^= 1
    assert int(fingerprint(view)) != int(fingerprint(flipped))


def replay_of(loss: Callable[[], torch.Tensor], model: torch.nn.Module) -> Replay:
    return Replay(model, list(model.parameters()), loss, Randomness())


def test_kernels_that_torch_replaces_without_a_warning_are_no_defect() -> None:
    """Passes differ, and those with deterministic kernels do not."""
    model, noise = torch.nn.Linear(4, 4), itertools.count()

    def loss() -> torch.Tensor:
        wobble = 0 if torch.are_deterministic_algorithms_enabled() else next(noise)
        result: torch.Tensor = model(torch.ones(2, 4) + wobble).square().mean()
        return result

    replay = replay_of(loss, model)
    differing, kernels = replay.find_differences(replay.prints(), replay.prints())
    assert differing == [0, 1] and kernels == replay.find_kernels() == [UNNAMED_KERNELS]


@pytest.mark.parametrize("every", [1, 5])
def test_device_that_is_wrong_now_and_then_has_no_such_excuse(every: int) -> None:
    """Its passes differ with deterministic kernels as well, though a few of them may be equal."""
    model, passes = torch.nn.Linear(4, 4), itertools.count(1)

    def loss() -> torch.Tensor:
        at = next(passes)
        wrong = at if every == 1 or at % every == 2 else 0
        result: torch.Tensor = model(torch.ones(2, 4) + wrong).square().mean()
        return result

    replay = replay_of(loss, model)
    assert replay.find_differences(replay.prints(), replay.prints()) == ([0, 1], [])
    assert replay.find_kernels() == []


def test_kernel_that_seldom_adds_in_another_order_is_found() -> None:
    """Ordinary passes are repeated until one differs."""
    model, passes = torch.nn.Linear(4, 4), itertools.count(1)

    def loss() -> torch.Tensor:
        is_fixed = torch.are_deterministic_algorithms_enabled()
        wobble = 0 if is_fixed or next(passes) % 5 else 1
        result: torch.Tensor = model(torch.ones(2, 4) + wobble).square().mean()
        return result

    assert replay_of(loss, model).find_kernels() == [UNNAMED_KERNELS]


def test_long_repetitions_mark_progress() -> None:
    """A pass of a large model takes seconds, and many of them longer than the limit of a step."""
    model, marks = torch.nn.Linear(4, 4), []

    def loss() -> torch.Tensor:
        result: torch.Tensor = model(torch.ones(2, 4)).square().mean()
        return result

    replay = Replay(
        model, list(model.parameters()), loss, Randomness(), progress=lambda: marks.append(1)
    )
    replay.find_kernels()
    assert len(marks) >= DETERMINISTIC_PASSES


def test_warnings_that_torch_gives_once_are_seen_each_time() -> None:
    """Kernels of attention warn once in a process otherwise."""
    with deterministic_kernels() as kernels:
        assert torch.is_warn_always_enabled()
    assert kernels == [] and not torch.is_warn_always_enabled()
