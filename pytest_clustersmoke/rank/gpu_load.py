"""The clock and the power of a GPU while it multiplies, by NVML (package `nvidia-ml-py`).

NVML's power is the mean of the last second on most GPUs (nvmlDeviceGetPowerUsage), so the work
before lasts longer. Neither is judged: a power cap, a warm rack or a better chip move them on
healthy GPUs, and what they cost shows in the multiplications themselves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LOAD_S = 1.5  # of work before the reading
CLOCK, POWER = "sm_clock_under_load_mhz", "power_under_load_watts"
EVENT_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # before NVML 12.2
)


@dataclass(frozen=True)
class LoadReading:
    """The figures, and NVML's bits of what holds the clock down (None: unknown)."""

    figures: dict[str, float]
    event_reasons: int | None


def open_gpu(uuid: str, nvml: Any = None) -> Callable[[], LoadReading] | None:
    """What reads the GPU with this UUID, by the module `pynvml` or a fake of it; None if NVML does
    not know it."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # no package, no driver, an old torch that knows no UUID
        return None
    return lambda: _read_gpu(nvml, handle)


def _read_gpu(nvml: Any, handle: Any) -> LoadReading:
    figures: dict[str, float] = {}
    with suppress(Exception):  # NVMLError is a class of the module itself
        figures[CLOCK] = float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    with suppress(Exception):
        figures[POWER] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    for name in EVENT_REASONS:
        with suppress(Exception):
            return LoadReading(figures, int(getattr(nvml, name)(handle)))
    return LoadReading(figures, None)
