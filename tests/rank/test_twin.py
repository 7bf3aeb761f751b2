"""The twin run: a healthy loop gives the same bits again, and a wrong one is found and placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_clustersmoke.rank.proof import Proof
from pytest_clustersmoke.rank.steps import StepLog
from pytest_clustersmoke.rank.twin import Twin

WIDTH, STEPS = 8, 30


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make a step of this size take a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Fault = Callable[[torch.nn.Module, torch.optim.Optimizer], None]


class Recorder:
    """Keeps the rank's events in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))

    def only(self, name: str) -> dict[str, Any]:
        (fields,) = [fields for each, fields in self.events if each == name]
        return fields


class Loop:
    """A loop of one rank; `fault` strikes once, before step `at` (from 1) of the timed pass."""

    def __init__(self, fault: Fault | None = None, at: int = 12, twin: bool = True) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout(0.2)
        )
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule: Callable[[], None] = lambda: None
        self.batches = [
            torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(seed))
            for seed in range(STEPS)
        ]
        self.recorder = Recorder()
        self._fault, self._at, self._twin = fault, at, twin

    @property
    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]

    @property
    def state(self) -> dict[str, Any]:
        """Everything that training leaves behind."""
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else {}
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer,
            "random": torch.get_rng_state(),
        }

    def loss(self, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.batches[index]).square().mean()
        return loss

    def make_log(self, proof: Proof) -> StepLog:
        return StepLog(
            events=self.recorder,  # type: ignore[arg-type]
            device=torch.device("cpu"),
            world_size=1,
            count=STEPS,
            samples_per_rank=16,
            gradients_of=self.model.named_parameters(),
            twin=Twin(proof) if self._twin else None,
        )

    def run(
        self,
        draw: Callable[[int], int] = lambda index: index,
        after_step: Callable[[int], None] = lambda index: None,
    ) -> dict[str, Any]:
        """The fields of the twin event. As in `Rank.steps`, a step begins after what the program
        did after the step before."""
        optimizer = self.optimizer
        proof = Proof(self.model, self.loss, optimizer=optimizer)
        for log in self.make_log(proof).passes(first=1, calls_begin=True):
            for index in range(log.recorded, STEPS):
                log.begin()
                if self._fault is not None and index == self._at - 1:
                    self._fault(self.model, optimizer)
                    self._fault = None
                optimizer.zero_grad()
                loss = self.loss(draw(index))
                loss.backward()
                optimizer.step()
                self.schedule()
                log.record(loss)
                after_step(index)
        return self.recorder.only("twin") if self._twin else {}


def flip(tensor: torch.Tensor, bit: int) -> None:
    tensor.data.view(torch.int32).view(-1)[3] ^= 1 << bit


def first_step(fields: dict[str, Any]) -> int:
    return min(int(place["step"]) for place in fields["differing"].values())


def test_healthy_loop_gives_the_same_bits_and_ends_as_without_a_twin() -> None:
    """Dropout, batch norm and the moments are put back before the second pass, and it ends where
    the first ended."""
    loop = Loop()
    fields = loop.run()
    assert fields["differing"] == {} and fields["rate_differs_at"] is None
    assert (fields["first_step"], fields["compared"]["loss"]) == (2, STEPS - 1)
    assert fields["compared"]["parameter"] == fields["compared"]["moment"] == STEPS - 1
    state = loop.state
    alone = Loop(twin=False)
    alone.run()
    torch.testing.assert_close(state, alone.state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("key", "bit"), [("weight", 0), ("weight", 30), ("exp_avg", 12), ("exp_avg_sq", 22)]
)
def test_flipped_bit_of_the_state_is_found(key: str, bit: int) -> None:
    """In a weight or a moment; at the latest where the next fingerprints are taken."""

    def fault(model: Any, optimizer: torch.optim.Optimizer) -> None:
        weight = model[0].weight
        flip(weight if key == "weight" else optimizer.state[weight][key], bit)

    fields = Loop(fault).run()
    assert 12 <= first_step(fields) <= 20
    assert fields["nondeterministic"] == []


@pytest.mark.parametrize("bit", [0, 30])
@pytest.mark.parametrize("is_zero", [False, True], ids=["moment", "moment_of_zero"])
def test_flipped_bit_of_a_moment_escapes_only_if_the_update_absorbs_it(
    is_zero: bool, bit: int
) -> None:
    """Then the step leaves the same bytes as without it, and so do all that follow. The first
    moments of LoRA's A are zero until its B is not: a low bit of zero is less than any rounding."""

    def run(fault: Fault | None) -> tuple[dict[str, Any], list[bytes]]:
        loop, left = Loop(fault), []

        def loss(index: int) -> torch.Tensor:
            value = Loop.loss(loop, index)
            return value * 0 if is_zero and index < 11 else value

        def keep(index: int) -> None:
            if index == 11:
                tensors = [t for p in loop.optimizer.state.values() for t in p.values()]
                left.append(b"".join(t.numpy().tobytes() for t in (*tensors, *loop.weights)))

        loop.loss = loss  # type: ignore[method-assign]
        return loop.run(after_step=keep), left

    def fault(model: Any, optimizer: torch.optim.Optimizer) -> None:
        moment = optimizer.state[model[0].weight]["exp_avg"]
        assert not is_zero or not moment.any()
        flip(moment, bit)

    (_, clean), (fields, left) = run(None), run(fault)
    assert clean[0] == clean[1] == left[1]
    assert bool(fields["differing"]) == (left[0] != clean[0])
    if is_zero or bit == 30:
        assert bool(fields["differing"]) == (bit == 30)


def test_flipped_moment_of_a_single_number_is_found() -> None:
    """In the last step, so that no parameter needs to show it: what it adds is below the rounding
    of a number as large as this bias."""

    def fault(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.state[model[-1].bias]["exp_avg"].data.view(torch.int32)[0] ^= 1 << 4

    loop = Loop(fault, at=STEPS)
    head = torch.nn.Linear(WIDTH, 1)
    head.bias.data.fill_(1000.0)
    loop.model.append(head)
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.01)
    place = {"step": STEPS, "name": "exp_avg of 3.bias"}
    assert loop.run()["differing"] == {"moment": place}


def test_flipped_copy_that_changes_no_result_is_found() -> None:
    """It is written over before anything reads it, as ZeRO's copies are by the next all-gather."""

    def fault(model: Any, _optimizer: torch.optim.Optimizer) -> None:
        weight, right = model[0].weight, model[0].weight.detach().clone()
        flip(weight, 0)

        def write_over(*_: Any) -> None:
            weight.data.copy_(right)
            hook.remove()

        hook = model[0].register_forward_pre_hook(write_over)

    place = {"step": 12, "name": "0.weight"}
    assert Loop(fault).run()["differing"] == {"weight": place}


def test_second_pass_is_in_no_figure() -> None:
    """Marks, losses, times and metrics are those of the timed pass; the twin has a stage."""
    loop = Loop()
    loop.run()
    events = loop.recorder
    assert len(events.only("step_times")["seconds"]) == STEPS
    assert len(events.only("losses")["mean"]) == STEPS
    steps = [fields["step"] for name, fields in events.events if name == "step"]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
    stages = [(f["name"], f["state"]) for name, f in events.events if name == "stage"]
    assert stages == [(name, state) for name in ("train", "twin") for state in ("begin", "end")]
    assert events.only("twin")["seconds"] > 0


def test_data_that_is_drawn_anew_is_told_from_a_wrong_result() -> None:
    """A loader that goes on where it was gives other batches; that is no fault of a device."""
    drawn = iter(range(1000))
    fields = Loop().run(draw=lambda _: next(drawn) % STEPS)
    assert fields["differing"]["batch"]["step"] == 2


def test_learning_rate_of_a_scheduler_outside_is_reported() -> None:
    """The optimizer's own settings are put back; the scheduler's count is not."""
    loop = Loop()
    loop.schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, step_size=10).step
    assert loop.run()["rate_differs_at"] == 2 + 8


class Unknown:
    """An optimizer that is none of torch's."""


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [(None, "names no optimizer"), (Unknown(), "the state of Unknown is not known")],
)
def test_state_that_cannot_be_restored_is_the_reason(optimizer: Any, words: str) -> None:
    """There is no second pass then, and the event says why."""
    loop = Loop()
    proof = Proof(loop.model, loop.loss, optimizer=optimizer)
    passes = 0
    for log in loop.make_log(proof).passes():
        passes += 1
        for _ in range(STEPS):
            loop.loss(0).backward()
            log.record(1.0)
    assert passes == 1
    assert words in loop.recorder.only("twin")["reason"]


def test_loop_that_runs_once_is_the_reason() -> None:
    """A program that calls start() and finish() is not asked to train again."""
    loop = Loop()
    log = loop.make_log(Proof(loop.model, loop.loss, optimizer=loop.optimizer))
    log.start()
    for _ in range(STEPS):
        loop.loss(0).backward()
        log.record(1.0)
    log.finish()
    assert "log.passes()" in loop.recorder.only("twin")["reason"]


def test_what_follows_a_step_belongs_to_both_passes() -> None:
    """An evaluation after `record` draws random numbers; the second pass begins after it."""
    fields = Loop().run(after_step=lambda index: torch.rand(3) if index == 0 else None)  # type: ignore[arg-type]
    assert fields["differing"] == {}


def test_state_that_an_optimizer_makes_later_is_left_out() -> None:
    """A layer that is first used in step 15 has moments from then on."""
    loop = Loop()
    late = torch.nn.Linear(WIDTH, WIDTH)
    loop.model.add_module("late", late)
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=0.01)
    early = torch.nn.Sequential(*list(loop.model)[:3])

    def loss(index: int) -> torch.Tensor:
        hidden = early(loop.batches[index])
        out: torch.Tensor = (late(hidden) if index >= 14 else hidden).square().mean()
        return out

    loop.loss = loss  # type: ignore[method-assign]
    assert loop.run()["differing"] == {}
