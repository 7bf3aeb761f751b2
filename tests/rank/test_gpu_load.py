"""Clock and power under load (a fake of NVML, and a CPU that multiplies: there is no GPU here)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_clustersmoke.rank.gpu_load import CLOCK, POWER, LoadReading, open_gpu
from pytest_clustersmoke.rank.known_answer import KnownAnswer
from tests.fakes.nvml import FakeNvml, gpu

ANSWERS = {("nvmlDeviceGetClockInfo", 1): 1755, "nvmlDeviceGetPowerUsage": 689_400}


def test_clock_power_and_reasons_are_those_of_the_gpu() -> None:
    """By UUID, since NVML numbers GPUs in another way than CUDA."""
    other = gpu("GPU-0", nvmlDeviceGetPowerUsage=1)
    read = open_gpu("GPU-1", FakeNvml(other, {**gpu("GPU-1"), **ANSWERS}))
    assert read is not None
    assert read() == LoadReading({CLOCK: 1755.0, POWER: 689.4}, 0x4)


def test_reasons_have_an_older_name() -> None:
    """Before NVML 12.2; and one that is not known is left out."""
    older = {**gpu("GPU-0"), "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20}
    read = open_gpu("GPU-0", FakeNvml(older, missing=("nvmlDeviceGetCurrentClocksEventReasons",)))
    assert read is not None and read() == LoadReading({}, 0x20)


def test_gpu_that_nvml_does_not_know_is_not_read() -> None:
    """Nor without a driver: torch before 2.4 knows no UUID."""
    assert open_gpu("n0/cuda:0", FakeNvml(gpu("GPU-0"))) is None
    assert open_gpu("GPU-0", FakeNvml()) is None


def test_load_multiplies_before_and_behind_the_mark() -> None:
    """What is read comes after the work of that time, while a quarter of it is still given."""
    calls = 0

    def count(multiply: Callable[[], torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return multiply()

    known = KnownAnswer(torch.device("cpu"), "fp32", count)
    before = calls
    assert known.load(0.0, lambda: calls) == before + 3  # one to time, one, and one behind
    assert calls == before + 3
