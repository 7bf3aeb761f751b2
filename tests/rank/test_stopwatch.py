"""Timing of calls on all ranks: batches, the slowest rank, the median, progress marks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_clustersmoke.rank.stopwatch import BATCH_S, Stopwatch


class FakeRank:
    """A rank that records its marks and barriers."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.marks: list[tuple[int, int]] = []
        self.barriers = 0

    def mark(self, step: int, steps: int) -> None:
        self.marks.append((step, steps))

    def barrier(self) -> None:
        self.barriers += 1


def stopwatch(rank: FakeRank, iterations: int = 20, warmup: int = 5, repeats: int = 3) -> Stopwatch:
    return Stopwatch(rank, iterations, warmup, repeats)  # type: ignore[arg-type]


class ScriptedStopwatch(Stopwatch):
    """A stopwatch with scripted times of its batches and of the other ranks."""

    script: list[float]
    others: list[float]

    def _batch(self, call: Callable[[], object] | None, count: int) -> float:
        self.counts = [*getattr(self, "counts", []), count]
        return self.script.pop(0)

    def slowest(self, values: list[float]) -> list[float]:
        others = [self.others.pop(0) for _ in values]
        return [max(pair) for pair in zip(values, others, strict=True)]


def scripted(script: list[float], others: list[float]) -> tuple[ScriptedStopwatch, FakeRank]:
    rank = FakeRank()
    watch = ScriptedStopwatch(rank, 20, 5, 3)  # type: ignore[arg-type]
    watch.script, watch.others, watch.steps = script, others, 7
    return watch, rank


def test_time_is_the_median_of_the_slowest_ranks() -> None:
    """One hiccup, of this rank or of another, does not become the time."""
    watch, _ = scripted([0.001, 0.0, 0.004, 0.9, 0.002], [0.001, 0.003, 0.003, 0.9])
    timing = watch.time(lambda: None)
    assert timing.seconds == 0.9  # (0.004, 0.9, 0.9): two of three batches had a hiccup somewhere
    assert timing.own_seconds == 0.004
    watch, _ = scripted([0.001, 0.0, 0.004, 0.9, 0.002], [0.001, 0.003, 0.003, 0.005])
    assert watch.time(lambda: None).seconds == 0.005


@pytest.mark.parametrize(
    ("first_s", "counts"),
    [(1e-4, [1, 5, 20, 20, 20]), (BATCH_S / 8, [1, 5, 8, 8, 8]), (9.0, [1, 1, 1, 1, 1])],
)
def test_slow_calls_have_fewer_iterations(first_s: float, counts: list[int]) -> None:
    """All ranks run as many as the slowest first call allows, and at least one."""
    watch, _ = scripted([0.0, 0.0, 1.0, 1.0, 1.0], [first_s, 1.0, 1.0, 1.0])
    timing = watch.time(lambda: None)
    assert watch.counts == counts and timing.iterations == counts[-1]


def test_every_batch_starts_together_and_marks_progress() -> None:
    """There is a barrier before each batch, and a mark after each batch and measurement."""
    watch, rank = scripted([0.0] * 5, [1e-3] * 4)
    watch.time(lambda: None)
    assert rank.barriers == 3
    assert rank.marks == [(0, 7)] * 4 + [(1, 7)]


def test_batch_on_cpu_is_the_mean_of_its_calls() -> None:
    """It makes the given number of calls; a rank without a call takes no time."""
    calls: list[int] = []
    watch = stopwatch(FakeRank())
    assert watch._batch(lambda: calls.append(1), 4) > 0 and len(calls) == 4
    assert watch._batch(None, 4) == 0.0
    assert watch._batch(lambda: calls.append(1), 0) == 0.0 and len(calls) == 4


def test_batch_on_a_gpu_is_synchronised_once_per_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is synchronised before the first call and after the last, and not in between."""
    actions: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: actions.append(f"wait {device}"))
    watch = stopwatch(FakeRank("cuda:1"))
    assert watch._batch(lambda: actions.append("call"), 3) > 0
    assert actions == ["wait cuda:1", "call", "call", "call", "wait cuda:1"]
