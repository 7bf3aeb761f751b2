"""Copies between every two devices of a node. There is no GPU here: the devices are CPUs, and NVML
is a fake."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from pytest_clustersmoke.rank import pair_copies, process_group
from pytest_clustersmoke.rank.pair_copies import (
    find_error,
    measure_alone,
    measure_pairs,
    name_link,
)

CPU = torch.device("cpu")


class FakeNvml:
    """The module `pynvml` with two GPUs, whose handles are their UUIDs."""

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def __init__(self, status: int, level: int) -> None:
        self._status, self._level = status, level

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802 - NVML's name
        if uuid not in ("GPU-a", "GPU-b"):
            raise ValueError(uuid)
        return uuid

    def nvmlDeviceGetP2PStatus(self, *asked: Any) -> int:  # noqa: N802 - NVML's name
        assert asked == ("GPU-a", "GPU-b", 2)
        return self._status

    def nvmlDeviceGetTopologyCommonAncestor(self, *asked: Any) -> int:  # noqa: N802 - NVML's name
        assert asked == ("GPU-a", "GPU-b")
        return self._level


def test_every_two_devices_are_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair with the name of its link."""
    monkeypatch.setattr(pair_copies, "PAIR_BYTES", 2**12)
    rows = measure_pairs([CPU] * 3, lambda first, second: f"{first}-{second}")
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert [(row["from"], row["to"]) for row in rows] == pairs
    assert [row["link"] for row in rows] == [f"{first}-{second}" for first, second in pairs]
    assert all(row["gb_per_s"] > 0 for row in rows)


def test_copies_arrive() -> None:
    """What is timed is a copy of the whole store."""
    store, target = torch.arange(256, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
    assert pair_copies._time_copies(CPU, store, target) > 0
    assert torch.equal(store, target)


@pytest.mark.parametrize(
    ("status", "level", "has_peer", "expected"),
    [
        (0, 50, True, "NVLink"),
        (3, 10, True, "PIX"),
        (3, 50, False, "SYS through the host"),
        (3, 99, True, ""),
    ],
)
def test_link_has_the_name_that_nvml_gives(
    status: int, level: int, has_peer: bool, expected: str
) -> None:
    """As `nvidia-smi topo` does."""
    assert name_link(FakeNvml(status, level), ("GPU-a", "GPU-b"), has_peer) == expected


@pytest.mark.parametrize("nvml", [None, FakeNvml(0, 10)])
def test_link_is_unknown_where_nvml_does_not_answer(nvml: Any) -> None:
    """Without the package, or for a GPU that it does not know."""
    assert name_link(nvml, ("GPU-a", "GPU-c"), True) == ""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('{\"pairs\": [1]}')", {"pairs": [1]}),
        ("print('Welcome'); print('{\"pairs\": [1]}', end='')", {"pairs": [1]}),
        ("raise RuntimeError('no NVLink today')", {"why": "RuntimeError: no NVLink today"}),
        ("raise SystemExit(3)", {"why": "exit status 3"}),
        (
            "raise RuntimeError('CUDA error: CUDA-capable device(s) is/are busy or unavailable')",
            {"pairs": []},
        ),
    ],
)
def test_process_says_why_it_has_no_pairs(
    code: str, expected: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only one process may use a GPU, it is no fault."""
    monkeypatch.setattr(pair_copies, "COMMAND", [sys.executable, "-S", "-c", code])
    assert json.loads(measure_alone()) == expected


def test_error_of_cuda_is_told_without_its_advice() -> None:
    """Its last line says how to compile torch."""
    error = "torch.AcceleratorError: CUDA error: peer access is not supported"
    advice = "CUDA kernel errors might be reported later.\nCompile with `TORCH_USE_CUDA_DSA`.\n"
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1, in main\n    copy()\n'
    assert find_error(f"a warning\n{frames}{error}\n{advice}") == error
    assert find_error("a warning\nKilled\n") == "Killed"
    assert find_error("") == ""


def test_process_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a writer that never comes, as for a driver."""
    os.mkfifo(tmp_path / "never")
    monkeypatch.setattr(pair_copies, "COMMAND", ["cat", str(tmp_path / "never")])
    monkeypatch.setattr(pair_copies, "LIMIT_S", 0.2)
    assert json.loads(measure_alone()) == {"why": "no answer within 0.2 s"}
    monkeypatch.setattr(pair_copies, "COMMAND", [str(tmp_path / "missing")])
    assert "No such file" in json.loads(measure_alone())["why"]


def test_text_is_shared_without_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks wait for it in the group's store."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    found: list[str] = []
    other = threading.Thread(
        target=lambda: found.append(process_group.share_text("pairs/0", None, 60))
    )
    other.start()
    assert process_group.share_text("pairs/0", "text", 60) == "text"
    other.join()
    assert found == ["text"]
