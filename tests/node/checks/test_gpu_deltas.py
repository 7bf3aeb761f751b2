"""What GPUs counted during a phase, read from a fake of NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_clustersmoke.node.checks.gpu_deltas import check_gpu_deltas
from pytest_clustersmoke.node.checks.node_values import Node
from pytest_clustersmoke.node.gpu_counters import read_gpus
from pytest_clustersmoke.text import FAILURE, WARNING
from tests.fakes.nvml import FakeNvml, Violation, gpu

NODE = Node(0, "n0", {})
ECC, ROWS = ("nvmlDeviceGetTotalEccErrors", 1, 1), "nvmlDeviceGetRemappedRows"
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
OLD_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"
THERMAL = ("nvmlDeviceGetViolationStatus", 1)
PAGES = ("nvmlDeviceGetRetiredPages", 1)
NVLINK = ("nvmlDeviceGetNvLinkErrorCounter", 2, 1)


def found(
    after: dict[Any, Any],
    before: dict[Any, Any] | None = None,
    ours: frozenset[str] = frozenset({"GPU-0", "GPU-1"}),
) -> list[tuple[str, str]]:
    """The findings of one healthy GPU and one that changed, with their severity."""
    usual = gpu("GPU-0")
    first = FakeNvml(usual, {**gpu("GPU-1"), **(before or {})})
    last = FakeNvml(usual, {**gpu("GPU-1"), **(before or {}), **after})
    readings = {"before": {"gpus": read_gpus(first)}, "after": {"gpus": read_gpus(last)}}
    findings = list(check_gpu_deltas(NODE, readings, ours))
    assert all(finding.cause.startswith("GPU-1 had ") for finding in findings)
    return [(finding.id, finding.severity) for finding in findings]


CASES: dict[str, tuple[dict[Any, Any], list[tuple[str, str]]]] = {
    "healthy": ({}, []),
    "an uncorrectable error": ({ECC: 1}, [("gpu-errors-during-job", FAILURE)]),
    "correctable errors": ({("nvmlDeviceGetTotalEccErrors", 0, 1): 9000}, []),
    "a row replaced": ({ROWS: (0, 1, True, False)}, [("gpu-errors-during-job", FAILURE)]),
    "a row that cannot be": ({ROWS: (0, 0, False, True)}, [("gpu-errors-during-job", FAILURE)]),
    "a few replays": ({"nvmlDeviceGetPcieReplayCounter": 5}, []),
    "many replays": ({"nvmlDeviceGetPcieReplayCounter": 5000}, [("gpu-link-errors", WARNING)]),
    "an NVLink recovered": ({NVLINK: 1}, [("gpu-link-errors", WARNING)]),
    "half of the lanes": ({"nvmlDeviceGetCurrPcieLinkWidth": 8}, [("pcie-link-narrow", WARNING)]),
    "too hot": ({THERMAL: Violation(9 * 10**9)}, [("gpu-clocks-held-down", WARNING)]),
    "hot for a moment": ({THERMAL: Violation(5 * 10**9 + 10**6)}, []),
    "slowed down": ({REASONS: 0x48}, [("gpu-clocks-held-down", WARNING)]),
    "idle": ({REASONS: 0x1}, []),
    "a counter that went back": ({ECC: -5, "nvmlDeviceGetPcieReplayCounter": 0}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_case_has_exactly_its_findings(name: str) -> None:
    """About the GPU that changed, and no other."""
    after, expected = CASES[name]
    assert found(after) == expected


def test_event_reasons_are_read_under_both_names() -> None:
    """NVML renamed them in version 12.2."""
    old = {name: value for name, value in gpu("GPU-0").items() if name != REASONS}
    reading = read_gpus(FakeNvml({**old, OLD_REASONS: 0x40}, missing=(REASONS,)))
    assert reading is not None and reading[0]["clock_event_reasons"] == 0x40


def test_retired_pages_stand_for_rows_before_ampere() -> None:
    """A GPU without rows to remap has lists of pages."""
    before = {PAGES: [1, 2]}
    assert found({PAGES: [1, 2, 3]}, before) == [("gpu-memory-wear", WARNING)]
    assert found({PAGES: [1, 2]}, before) == []


def test_what_a_gpu_does_not_know_is_left_out() -> None:
    """No count is taken for zero."""
    reading = read_gpus(FakeNvml({"nvmlDeviceGetUUID": b"GPU-7"}))
    assert reading == [{"uuid": "GPU-7"}]
    assert read_gpus(FakeNvml()) is None


SENT, GOT = (("field", field, 2**32 - 1) for field in (138, 139))  # in KiB


def find_silent(*mib: int | None, others: int = 0) -> list[str]:
    """The GPUs named of a node whose NVLinks carried so many MiB each way (None: not counted), and
    of `others` that are not the job's and carried nothing."""
    names = [f"GPU-{number}" for number in range(len(mib) + others)]
    start = {SENT: 5000, GOT: 7000}
    first = [gpu(name) | start for name in names]
    last = [
        gpu(name) | ({} if more is None else {SENT: 5000 + more * 1024, GOT: 7000 + more * 1024})
        for name, more in zip(names, [*mib, *[0] * others], strict=True)
    ]
    readings = {"before": {"gpus": read_gpus(FakeNvml(*first))}} | {
        "after": {"gpus": read_gpus(FakeNvml(*last))}
    }
    found = list(check_gpu_deltas(NODE, readings, names[: len(mib)]))
    assert {(each.id, each.severity) for each in found} <= {("nvlink-silent", WARNING)}
    return [each.cause.partition(" had ")[0] for each in found]


def test_gpu_whose_nvlinks_carried_nothing_is_named() -> None:
    """Beside two others of the job at least: its traffic went around, over PCIe."""
    assert find_silent(500, 500, 0, 500) == ["GPU-2"]
    assert find_silent(500, 480, 20) == ["GPU-2"]
    assert find_silent(500, 250, 510, 260) == []  # the ends of a chain
    assert find_silent(500, 0) == [] == find_silent(9, 9, 0, 9) == find_silent(0, 0, 0, 0)
    assert find_silent(500, 500, 500, others=4) == []


def test_nvlinks_whose_bytes_are_not_counted_are_not_judged() -> None:
    """Neither a GPU without the field, nor one whose count went back."""
    assert find_silent(500, None, 500, 500) == []
    assert find_silent(500, 500, -3, 500) == []
    both = read_gpus(FakeNvml(gpu("GPU-0") | {SENT: 3, GOT: 4}, gpu("GPU-1") | {SENT: 3}))
    assert both is not None and both[0]["nvlink_bytes"] == 7 * 1024
    assert "nvlink_bytes" not in both[1]


@pytest.mark.parametrize("ours", [frozenset({"GPU-0"}), frozenset[str]()])
def test_damage_of_other_jobs_gpus_is_a_warning(ours: frozenset[str]) -> None:
    """A job on a shared node does not fail for them, and no evidence is definite."""
    for after in ({ECC: 1}, {ROWS: (0, 0, False, True)}):
        assert found(after, ours=ours) == [("gpu-memory-wear", WARNING)]


@pytest.mark.parametrize("readings", [None, {"after": []}, {"after": {"gpus": [{"uuid": 3}]}}])
def test_readings_that_are_not_whole_say_nothing(readings: Any) -> None:
    """As of a node that died, or of a job that wrote them."""
    assert list(check_gpu_deltas(NODE, readings, ())) == []


def test_machine_without_nvml_reads_null() -> None:
    """In the process of its own that a node starts."""
    command = [sys.executable, "-m", "pytest_clustersmoke.node.gpu_counters"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is None or isinstance(json.loads(done.stdout), list)
