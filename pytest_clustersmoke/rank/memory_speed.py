"""How fast memory is: of the device, of the host, and between the two.

The host's is measured by this thread's CPU time, in one thread: a core that others use as well
counts only for the time in which it works for this thread.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..evidence.device_links import describe_link
from .known_answer import fit_count, one_thread, time_call

GB = 1e9
DEVICE_BYTES, HOST_BYTES = 2**28, 2**26  # of one copy
COPIES = 8
LATENCY_WORDS, HOPS = 2**23, 200_000  # 64 MiB, which no core's own cache holds
SEED = 7
PCI = Path("/sys/bus/pci/devices")


class DeviceMemory:
    """Copies inside the device's memory: bytes read and written."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._from, self._to = (
            torch.zeros(DEVICE_BYTES, dtype=torch.uint8, device=device) for _ in range(2)
        )

    def time(self) -> float:
        seconds = time_call(self._device, lambda: self._to.copy_(self._from), COPIES)
        return 2 * DEVICE_BYTES / seconds / GB


class HostCopies:
    """Copies from the host's pinned memory to the device, and back."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        # The kernel takes memory of the node whose core writes it first.
        with near_device(device) as self.near:
            self._host = torch.zeros(DEVICE_BYTES, dtype=torch.uint8).pin_memory()
        self._there = torch.zeros(DEVICE_BYTES, dtype=torch.uint8, device=device)

    def time_to_device(self) -> float:
        return self._time(lambda: self._there.copy_(self._host, non_blocking=True))

    def time_to_host(self) -> float:
        return self._time(lambda: self._host.copy_(self._there, non_blocking=True))

    def describe_link(self) -> dict[str, Any]:
        """The PCIe link between both, while it carries copies: an idle one runs slowly."""
        for _ in range(COPIES):
            self._there.copy_(self._host, non_blocking=True)
        place = find_pci_device(self._device)
        return describe_link(place) if place else {"unknown": "torch does not say where it is"}

    def _time(self, call: Callable[[], object]) -> float:
        return DEVICE_BYTES / time_call(self._device, call, COPIES) / GB


class HostMemory:
    """Copies inside the host's memory by one core, in bytes read and written; and how long it waits
    for a word whose place only the word before says."""

    def __init__(self) -> None:
        import torch

        cpu = torch.device("cpu")
        self._cpu = cpu
        self._from, self._to = (torch.zeros(HOST_BYTES, dtype=torch.uint8) for _ in range(2))
        order = torch.randperm(LATENCY_WORDS, generator=torch.Generator().manual_seed(SEED))
        self._next = torch.empty(LATENCY_WORDS, dtype=torch.int64)
        self._next[order] = order.roll(-1)  # one circle through all words
        words: Any = ctypes.c_int64 * LATENCY_WORDS
        self._words = words.from_address(self._next.data_ptr())

    def time_copy(self) -> float:
        with one_thread():
            seconds = time_call(self._cpu, lambda: self._to.copy_(self._from), 1)
            count = fit_count(seconds, 0.05, COPIES)
            seconds = time_call(self._cpu, lambda: self._to.copy_(self._from), count)
        return 2 * HOST_BYTES / max(seconds, 1e-12) / GB

    def time_latency(self) -> float:
        """Nanoseconds of a hop, with what the interpreter adds, which is the same everywhere."""
        at, words = 0, self._words
        began = time.thread_time()
        for _ in itertools.repeat(None, HOPS):
            at = words[at]
        return (time.thread_time() - began) / HOPS * 1e9


@contextmanager
def near_device(device: Any) -> Iterator[bool]:
    """Run on the cores that are next to the device; False where the kernel does not say which, or
    this process may use none of them."""
    before = os.sched_getaffinity(0)
    near, is_near = _cores_near(device) & before, False
    with suppress(OSError):
        if near:
            os.sched_setaffinity(0, near)
            is_near = True
    try:
        yield is_near
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def _cores_near(device: Any) -> set[int]:
    place = find_pci_device(device)
    with suppress(OSError, ValueError):
        return parse_cpulist((place / "local_cpulist").read_text()) if place else set()
    return set()


def find_pci_device(device: Any) -> Path | None:
    """Where the kernel describes a GPU; None if torch does not say which it is, as before 2.5."""
    import torch

    known = torch.cuda.get_device_properties(device)
    places = [getattr(known, name, None) for name in ("pci_domain_id", "pci_bus_id")]
    return None if None in places else PCI / f"{places[0]:04x}:{places[1]:02x}:00.0"


def parse_cpulist(text: str) -> set[int]:
    """The numbers in the kernel's `0-3,8`. Raises ValueError."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
