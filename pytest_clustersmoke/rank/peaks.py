"""Measures what this rank's device can do, once in a run, after the process group is open.

The first phase that gets a device measures it: the rank creates a file in the run's directory. All
ranks take part in the stage as soon as one of them measures, since they wait for each other: the
copies between host and device go through paths that the devices of a node share, so each rank has
its turn. Measurements are repeated in turns, so that a drift of the clocks meets all of them.

What cannot be measured is left out, with its reason, and never fails the rank. No figure of the
training has any part of it: it ends before the model is built.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..evidence.device_links import PAIRS
from ..evidence.run_directory import RunDir, create_once, read_json, write_json
from ..evidence.telemetry import typical_s
from . import gpu_load, network_cards, pair_copies, process_group
from .device import name_cpu, start_facts
from .known_answer import KnownAnswer, choose_precision, one_thread
from .memory_speed import DeviceMemory, HostCopies, HostMemory
from .overlap import Overlap
from .peak_memory import forget_peak
from .rank_environment import PeakOrder, RankEnvironment, read_rank_environment

ROUNDS = 5
MAX_REASON = 300
STAGE = "peaks"
# Local rank 0 may come later than the others.
PAIRS_WITHIN_S = 2 * pair_copies.LIMIT_S + network_cards.MOST_S
# Of a node that is measured outside of any phase: the file of its figures, and the precision.
FIGURES, PRECISION = "CLUSTERSMOKE_FIGURES", "CLUSTERSMOKE_PRECISION"
ANSWERED = ("calls", "wrong", "answer", "precision", "not_measured", "near_device")
LINKED = ("pcie_link", "pairs", "cards", "cpu")
DESCRIBED = ("local_rank", "device", "device_name", "torch", "cuda")
# name -> unit, whether higher is better
UNITS = {
    "device_copy_gb_per_s": ("GB/s", True),
    "host_to_device_gb_per_s": ("GB/s", True),
    "device_to_host_gb_per_s": ("GB/s", True),
    "cpu_copy_gb_per_s": ("GB/s", True),
    "cpu_latency_ns": ("ns", False),
    "overlap_share": ("1", True),
    gpu_load.CLOCK: ("MHz", True),
    gpu_load.POWER: ("W", True),
}


class Peaks:
    """`measure` on all ranks; returns the fields of the `peaks` event of this one."""

    def __init__(
        self,
        environment: RankEnvironment,
        order: PeakOrder,
        device: Any,
        identity: str,
        multiply: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self._environment, self._order, self._device = environment, order, device
        self._identity, self._multiply = identity, multiply
        self._rounds: dict[str, list[float]] = {}
        self._reasons: dict[str, str] = {}
        self._mine = self._node = self._of_pairs = self._of_cards = False
        self._elsewhere = ""  # the phase that measured the device
        # A GPU without a UUID may be another one in each phase.
        self._unnamed = f"{environment.node}/cuda:{environment.local_rank}"
        self._near = False  # the host's memory of copies is next to the device
        self._link: dict[str, Any] | None = None  # PCIe, while it carried the copies
        self._pairs: list[dict[str, Any]] = []  # copies to the other GPUs of the node
        self._cards: list[dict[str, Any]] = []  # network cards, each alone between two GPUs
        self._known: KnownAnswer | None = None
        self._event_reasons: int | None = None  # that hold the clock down under load
        self._answers: dict[str, Any] = {}
        self._precision = choose_precision(order.precision, device)

    def claim(self) -> bool:
        """Whether any rank measures: its device, or on local rank 0 also its node, the pairs of its
        GPUs, and its network cards."""
        self._mine = self._claim(self._identity)
        if self._environment.local_rank == 0:
            self._node = self._claim("")
            count = self._environment.local_world_size
            has_pairs = self._device.type == "cuda" and count > 1
            self._of_pairs = has_pairs and self._claim(f"pairs of {count}", of_device=False)
            self._of_cards = has_pairs and self._claim("cards", of_device=False)
        holds = self._mine or self._node or self._of_pairs or self._of_cards
        return process_group.any_rank(holds, self._device)

    def _claim(self, device: str, of_device: bool = True) -> bool:
        order, path = self._order, self._order.claim(self._environment.node, device)
        place = self._environment.phase_dir
        if order.always or place is None:
            return order.always
        if device and device == self._unnamed:
            return True
        value = {"phase": order.phase, "job": place.root.name, "rank": self._environment.rank}
        with suppress(OSError):  # a full disk: the device is not measured
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if create_once(path, value):
                return True
        found = read_json(path) or {}
        if found.get("phase") == order.phase:  # by a job of this phase that did not end well
            return found.get("job") != value["job"]
        if device and of_device:
            self._name_elsewhere(str(found.get("phase", "")), path)
        return False

    def _name_elsewhere(self, phase: str, claim: Path) -> None:
        """Name the phase that measured the device. One that only began to may have died of it."""
        done = read_json(_done(claim)) or {}
        if done:
            self._elsewhere = str(done.get("phase", ""))
        elif phase:
            self._reasons["device"] = f"phase {phase} began to measure it, and has not finished"

    def mark_done(self) -> None:
        """Say that the device was measured, after its figures were written."""
        measured = self._mine and bool(self._rounds)
        if measured and not self._order.always and self._environment.phase_dir is not None:
            path = _done(self._order.claim(self._environment.node, self._identity))
            with suppress(OSError):  # later phases say that it has not finished
                write_json(path, {"phase": self._order.phase})

    def measure(self) -> dict[str, Any]:
        """The figures of this rank's device and node, and what could not be measured."""
        began = time.perf_counter()
        tools = self._prepare()
        for _ in range(ROUNDS):
            process_group.barrier(self._device)
            self._run(tools, "device")
            self._take_turns(tools)
        self._measure_load()
        del tools
        self._measure_overlap()
        self._clean_up()
        self._measure_links()
        process_group.barrier(self._device)
        return {**self.fields(), "seconds": time.perf_counter() - began}

    def _prepare(self) -> dict[str, list[tuple[str, Callable[[], float]]]]:
        """By turn, what each round measures: the name of a figure, and what returns it."""
        tools: dict[str, list[tuple[str, Callable[[], float]]]] = {"device": [], "turn": []}
        name = f"gemm_{self._precision}_tflops"
        on_cuda = self._device.type == "cuda"
        if self._mine:
            with self._leaving_out(name):
                self._known = known = KnownAnswer(self._device, self._precision, self._multiply)
                tools["device"].append((name, lambda: self._multiply_known(known)))
        if self._mine and on_cuda:
            with self._leaving_out("device_copy_gb_per_s"):
                tools["device"].append(("device_copy_gb_per_s", DeviceMemory(self._device).time))
            with self._leaving_out("host_to_device_gb_per_s"):
                host = HostCopies(self._device)
                self._near = host.near
                tools["turn"].append(("host_to_device_gb_per_s", lambda: self._copy_to(host)))
                tools["turn"].append(("device_to_host_gb_per_s", host.time_to_host))
        if self._node:
            with self._leaving_out("cpu_copy_gb_per_s"):
                memory = HostMemory()
                tools["turn"].append(("cpu_copy_gb_per_s", memory.time_copy))
                tools["turn"].append(("cpu_latency_ns", memory.time_latency))
        return tools

    def _multiply_known(self, known: KnownAnswer) -> float:
        with one_thread():
            figure = known.time()
            known.check(ROUNDS)
        self._answers = known.fields()
        return figure

    def _copy_to(self, host: HostCopies) -> float:
        figure = host.time_to_device()
        self._link = host.describe_link()
        return figure

    def _take_turns(self, tools: dict[str, list[tuple[str, Callable[[], float]]]]) -> None:
        """One rank of each node after the other."""
        for turn in range(self._environment.local_world_size):
            process_group.barrier(self._device)
            if turn == self._environment.local_rank:
                self._run(tools, "turn")

    def _run(self, tools: dict[str, list[tuple[str, Callable[[], float]]]], turn: str) -> None:
        for name, measure in tools[turn]:
            if name not in self._reasons:
                with self._leaving_out(name):
                    self._rounds.setdefault(name, []).append(measure())

    def _measure_load(self) -> None:
        """Clock and power of all GPUs at once, as in training; without NVML there are none."""
        known, self._known = self._known, None
        read = gpu_load.open_gpu(self._identity) if known is not None else None
        process_group.barrier(self._device)
        if known is None or read is None:
            return
        with suppress(Exception):  # what the device cannot do, its other figures say
            reading = known.load(gpu_load.LOAD_S, read)
            self._event_reasons = reading.event_reasons
            self._rounds |= {name: [value] for name, value in reading.figures.items()}

    def _measure_overlap(self) -> None:
        """All ranks together, on GPUs: they reduce while they multiply."""
        if self._device.type != "cuda" or self._environment.world_size < 2:
            return
        overlap: Overlap | None = None
        with self._leaving_out("overlap_share"):
            overlap = Overlap(self._device, self._precision)
        if process_group.any_rank(overlap is None, self._device) or overlap is None:
            return  # all of them would wait for the one that cannot
        shares = overlap.measure()
        if self._mine:
            self._rounds["overlap_share"] = shares

    def _measure_links(self) -> None:
        """Between the GPUs of a node, and by its network cards, by processes of their own. The
        ranks of the node wait for what was found, without a collective, which would use their
        GPUs."""
        environment = self._environment
        if not process_group.any_rank(self._of_pairs or self._of_cards, self._device):
            return
        text = None  # on local rank 0 what it shares
        if environment.local_rank == 0:
            text = pair_copies.measure_alone() if self._of_pairs else "{}"
            self._cards = network_cards.measure_cards() if self._of_cards else []
        key = f"clustersmoke/pairs/{environment.node_rank}"
        with self._leaving_out(PAIRS):
            found = json.loads(process_group.share_text(key, text, PAIRS_WITHIN_S))
            self._pairs = [
                row for row in found.get("pairs", ()) if row["from"] == environment.local_rank
            ]
            if environment.local_rank == 0 and "why" in found:
                self._reasons[PAIRS] = found["why"]

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        """Leave a figure out that cannot be measured; the rank goes on."""
        try:
            yield
        except Exception as error:
            self._reasons[name] = f"{type(error).__name__}: {error}"[:MAX_REASON]
            self._rounds.pop(name, None)

    def _clean_up(self) -> None:
        """Give the memory back, and forget it: the training's peak has no part of it."""
        gc.collect()
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        else:
            forget_peak()

    def fields(self) -> dict[str, Any]:
        """What the event says; without `measure`, only which phase has measured the device."""
        figures = []
        for name, rounds in self._rounds.items():
            unit, higher = UNITS.get(name, ("TFLOP/s", True))
            of_host = name.startswith("cpu_")
            is_cpu = of_host or self._device.type == "cpu"
            best = max(rounds) if higher else min(rounds)  # a CPU is disturbed, never helped
            figures.append(
                {
                    "device": "" if of_host else self._identity,
                    "name": name,
                    "value": best if is_cpu else typical_s(rounds),
                    "unit": unit,
                    "higher_is_better": higher,
                    "rounds": rounds,
                }
            )
        return {
            "figures": figures,
            **self._answers,
            "precision": self._precision,
            "cpu": name_cpu(),
            "near_device": self._near,
            "pcie_link": self._link,
            "pairs": self._pairs,
            "cards": self._cards,
            "clock_event_reasons": self._event_reasons,
            "measured_in": self._elsewhere,
            "not_measured": self._reasons,
        }


def _done(claim: Path) -> Path:
    return claim.with_name(f"{claim.name}.done")


def measure_alone() -> None:
    """The ranks of one node measure it, outside of any phase: the first one writes all figures to
    the file that FIGURES names.

    torchrun --standalone --nproc_per_node=N -m pytest_clustersmoke.rank.peaks
    """
    from .core import Rank

    with Rank.start() as rank:
        environment = read_rank_environment()
        order = PeakOrder(RunDir(Path()), "", True, os.environ.get(PRECISION, ""))
        about = start_facts(environment, rank.device)
        identity = f"{environment.node}/{rank.device.type}:{rank.local_rank}"
        identity = about["gpu_uuid"] or identity
        peaks = Peaks(environment, order, rank.device, identity, lambda multiply: multiply())
        peaks.claim()
        own = {"identity": identity, **{key: about[key] for key in DESCRIBED}}
        found = process_group.gather_objects({**own, **peaks.measure()})
        if rank.is_main:
            figures = [figure for fields in found for figure in fields["figures"]]
            names = ("identity", *DESCRIBED, *ANSWERED, *LINKED)
            devices = [{key: fields.get(key) for key in names} for fields in found]
            write_json(Path(os.environ[FIGURES]), {"figures": figures, "devices": devices})


if __name__ == "__main__":
    measure_alone()
