"""A fake of the module `pynvml`: it answers for GPUs that are dictionaries, as NVML's functions do.

A GPU without an answer raises, as NVML does for what a driver or a GPU does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONSTANTS = {
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_AGGREGATE_ECC": 1,
    "NVML_CLOCK_SM": 1,
    "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS": 0,
    "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR": 1,
    "NVML_PERF_POLICY_THERMAL": 1,
    "NVML_PERF_POLICY_BOARD_LIMIT": 3,
    "NVML_PERF_POLICY_RELIABILITY": 5,
    "NVML_NVLINK_ERROR_DL_REPLAY": 0,
    "NVML_NVLINK_ERROR_DL_RECOVERY": 1,
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": 2,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
}


class NotSupported(Exception):
    """As NVML's NVMLError_NotSupported."""


@dataclass
class Violation:
    violationTime: int  # noqa: N815 - NVML's name


def gpu(uuid: str, **answers: Any) -> dict[Any, Any]:
    """A healthy GPU: NVML's function, or the function with its constants, -> its answer."""
    return {
        "nvmlDeviceGetUUID": uuid,
        ("nvmlDeviceGetTotalEccErrors", 1, 1): 0,
        ("nvmlDeviceGetTotalEccErrors", 0, 1): 12,
        "nvmlDeviceGetPcieReplayCounter": 3,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetRemappedRows": (0, 0, False, False),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4,  # the power cap holds clocks: usual
        ("nvmlDeviceGetViolationStatus", 1): Violation(5 * 10**9),
        **{("nvmlDeviceGetNvLinkErrorCounter", link, 1): 0 for link in range(4)},
        **answers,
    }


@dataclass
class FieldValue:
    """One answer of nvmlDeviceGetFieldValues: of a field that a GPU lacks, an error."""

    count: int | None

    @property
    def value(self) -> FieldValue:
        return self

    @property
    def ullVal(self) -> int:  # noqa: N802 - NVML's name
        return self.count or 0

    @property
    def nvmlReturn(self) -> int:  # noqa: N802 - NVML's name
        return 0 if self.count is not None else 3


class FakeNvml:
    """The module. `missing`: names that this version does not have."""

    def __init__(self, *gpus: dict[Any, Any], missing: tuple[str, ...] = ()) -> None:
        self._gpus, self._missing = gpus, missing

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if not self._gpus:
            raise NotSupported("driver not loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[Any, Any]:  # noqa: N802 - NVML's name
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[Any, Any]:  # noqa: N802 - NVML's name
        return next(each for each in self._gpus if each["nvmlDeviceGetUUID"] == uuid)

    def nvmlDeviceGetFieldValues(  # noqa: N802 - NVML's name
        self, handle: dict[Any, Any], fields: list[tuple[int, int]]
    ) -> list[FieldValue]:
        return [FieldValue(handle.get(("field", *field))) for field in fields]

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(name)
        if name in CONSTANTS:
            return CONSTANTS[name]

        def ask(handle: dict[Any, Any], *arguments: int) -> Any:
            key = (name, *arguments) if arguments else name
            if key not in handle:
                raise NotSupported(name)
            return handle[key]

        return ask
