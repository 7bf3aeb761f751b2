"""What NVML has counted of a node's GPUs, read before and after a phase.

    python -m pytest_clustersmoke.node.gpu_counters

prints it as JSON, in a process of its own: where a driver hangs, the node does not. Without the
package `nvidia-ml-py`, or without a driver, it prints `null`. What a GPU or driver does not know is
left out; names that NVML changed are asked by both.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NVLINKS = 18
# Our name -> NVML's function, and the names of its arguments' constants.
PLAIN = {
    "ecc_uncorrected": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_AGGREGATE_ECC"),
    ),
    "ecc_corrected": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_AGGREGATE_ECC"),
    ),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_max_width": ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    "max_sm_clock_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    "power_mw": ("nvmlDeviceGetPowerUsage", ()),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", ()),
}
EVENT_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # before NVML 12.2
)
RETIRED = (
    "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",
    "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",
)
# For how long clocks were held down, in ns since the driver was loaded.
VIOLATIONS = {
    "thermal_ns": "NVML_PERF_POLICY_THERMAL",
    "board_limit_ns": "NVML_PERF_POLICY_BOARD_LIMIT",
    "reliability_ns": "NVML_PERF_POLICY_RELIABILITY",
}
# Fields that count the data of NVLinks, in KiB; the scope is all links of the GPU (nvml.h).
NVLINK_DATA = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
ALL_LINKS, KIB = 2**32 - 1, 1024
NVLINK_ERRORS = {
    "nvlink_replays": "NVML_NVLINK_ERROR_DL_REPLAY",
    "nvlink_recoveries": "NVML_NVLINK_ERROR_DL_RECOVERY",
    "nvlink_crc_errors": "NVML_NVLINK_ERROR_DL_CRC_FLIT",
}


def read_gpus(nvml: Any) -> list[dict[str, Any]] | None:
    """The counters of each GPU by the module `pynvml`, or a fake of it; None if it has none."""
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # NVMLError is a class of the module itself
        return None
    return [_read_gpu(nvml, handle) for handle in handles]


def _read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    ask = _Question(nvml, handle)
    found: dict[str, Any] = {"uuid": ask("nvmlDeviceGetUUID")}
    for name, (function, arguments) in PLAIN.items():
        found[name] = ask(function, *arguments)
    found["clock_event_reasons"] = _first(ask, EVENT_REASONS)
    if rows := ask("nvmlDeviceGetRemappedRows"):
        names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed")
        found |= dict(zip(names, map(int, rows), strict=False))
    pages = [ask("nvmlDeviceGetRetiredPages", cause) for cause in RETIRED]
    if any(listed is not None for listed in pages):
        found["retired_pages"] = sum(len(listed or ()) for listed in pages)
    for name, policy in VIOLATIONS.items():
        status = ask("nvmlDeviceGetViolationStatus", policy)
        found[name] = getattr(status, "violationTime", None)
    for name, counter in NVLINK_ERRORS.items():
        counts = [ask("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in range(NVLINKS)]
        known = [count for count in counts if count is not None]
        found[name] = sum(known) if known else None
    if None not in (data := [ask.count_field(name, ALL_LINKS) for name in NVLINK_DATA]):
        found["nvlink_bytes"] = KIB * sum(filter(None, data))
    return {name: _as_text(value) for name, value in found.items() if value is not None}


class _Question:
    """Asks NVML about one GPU; None for what it does not know. Names of constants become them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def __call__(self, function: str, *arguments: str | int) -> Any:
        try:
            values = [getattr(self._nvml, a) if isinstance(a, str) else a for a in arguments]
            return getattr(self._nvml, function)(self._handle, *values)
        except Exception:  # an old driver, an old package, a GPU without it
            return None

    def count_field(self, name: str, scope: int) -> int | None:
        """What a field counts; each field says by itself whether this GPU has it."""
        try:
            wanted = [(getattr(self._nvml, name), scope)]
            (answer,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, wanted)
            return int(answer.value.ullVal) if answer.nvmlReturn == 0 else None
        except Exception:  # as above
            return None


def _first(ask: Callable[[str], Any], functions: Iterable[str]) -> Any:
    answers = (ask(function) for function in functions)
    return next((answer for answer in answers if answer is not None), None)


def _as_text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def subtract_counters(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """What each counter has counted; those that are missing or went back are left out."""
    return {
        name: after[name] - value
        for name, value in before.items()
        if type(value) is int and type(after.get(name)) is int and after[name] >= value
    }


def main() -> None:
    try:
        found = read_gpus(importlib.import_module("pynvml"))  # of the package nvidia-ml-py
    except ImportError:
        found = None
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
