"""How fast each network card of the node carries an all-reduce of NCCL between two of its GPUs.

NCCL reads its variables once in a process. So each port of a card has two processes of its own,
which may use no other one (NCCL_IB_HCA), nor P2P or shared memory between GPUs:

    python -m pytest_clustersmoke.rank.network_cards FOLDER RANK DEVICE

They measure one port after the other, while those of the next ones load torch: a node may have
32 ports, and its job no memory for 64 processes. Both GPUs send and receive through the same port,
so expect about half of its rate. That shows the card and its PCIe path; the bytes need not leave
the card, so cable and switch need not have carried any.

A port that fails or hangs costs its own row alone: each has its time, and all together have a
limit, since the ranks of the job wait. By itself NCCL uses no port that is neither InfiniBand nor
Ethernet, such as those of EFA, which a plugin reaches: these are left out with that reason.

What NCCL used is read in the log of these processes: with anything else than the port, there is no
figure, and the row says why.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..evidence.interfaces import BY_DEVICE, is_active, selects_port, uses_infiniband
from ..evidence.nccl.log_reader import Reader
from ..evidence.telemetry import parse_finite, typical_s
from ..evidence.whole_files import read_json, write_json
from ..text import shorten
from .memory_speed import GB, find_pci_device
from .pair_copies import find_error
from .process_group import backend_of

COMMAND = [sys.executable, "-m", "pytest_clustersmoke.rank.network_cards"]
INFINIBAND = Path("/sys/class/infiniband")
TURN_S, PORT_S, MOST_S = 20.0, 10.0, 100.0  # of one port; of all: for each of them, and at most
AT_ONCE = 3  # ports whose processes are there at a time
LOOK_S, GRACE_S = 0.05, 1.0
BYTES, CALLS, ROUNDS = 2**26, 4, 5
MAX_WORDS, MAX_NAMED = 300, 4
FEW_GPUS = "this needs two GPUs, and the rank sees {}"
LAYERS = ("", "InfiniBand", "Ethernet")  # those that NCCL uses by itself (net_ib.cc); "": unknown
EFA = "efa"  # the driver of Amazon's
# The port alone carries what these processes exchange, and NCCL says what it used.
ALONE = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET_DISABLE_INTRA": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
}
# What belongs to the ranks of the job, where these would write dumps in their names.
OF_RANKS = (
    *("CLUSTERSMOKE_", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_"),
    *("NCCL_TOPO_DUMP_", "NCCL_GRAPH_DUMP_"),
)


@dataclass(frozen=True)
class CardPort:
    """A port of a network card: its name in NCCL_IB_HCA, the GUID of the card, its rate in the
    kernel's words, where the kernel describes the card, and the port's link layer."""

    name: str
    guid: str
    rate: str
    place: Path
    layer: str = ""

    def row(self, **found: Any) -> dict[str, Any]:
        """What the event says of it."""
        return {"name": self.name, "guid": self.guid, "rate": self.rate, **found}


def find_ports(variables: Mapping[str, str], root: Path = INFINIBAND) -> Iterator[CardPort]:
    """The active RDMA ports that NCCL may use under these variables."""
    if not uses_infiniband(variables):
        return
    for place in sorted(root.glob("*/ports/*")):
        card = place.parent.parent
        port = {"hca": card.name, "port": place.name, "state": _read_word(place / "state")}
        if is_active(port) and selects_port(variables.get(BY_DEVICE, ""), port):
            guid = _read_word(card / "node_guid").replace(":", "")
            rate, layer = _read_word(place / "rate"), _read_word(place / "link_layer")
            yield CardPort(f"{card.name}:{place.name}", guid, rate, card / "device", layer)


def choose_gpus(card: Path, gpus: Sequence[Path | None]) -> list[int]:
    """The two GPUs that share the longest way to the processor with the card, or else its memory,
    or else the first ones. The kernel shows it the same way on nodes that are built alike."""
    parts = card.resolve().parts

    def measure_distance(number: int) -> tuple[int, bool, int]:
        gpu = gpus[number]
        if gpu is None:
            return 0, True, number
        steps = zip(parts, gpu.resolve().parts, strict=False)
        shared = sum(1 for _ in takewhile(lambda step: step[0] == step[1], steps))
        memory = _read_word(card / "numa_node")
        return -shared, memory != _read_word(gpu / "numa_node"), number

    return sorted(range(len(gpus)), key=measure_distance)[:2]


def measure_cards(
    gpus: Sequence[Path | None] | None = None, root: Path = INFINIBAND
) -> list[dict[str, Any]]:
    """A row for each port that the job may use: its GB/s, or `why` it has none. It raises nothing,
    since other ranks wait for the one that calls it."""
    try:
        ports = list(find_ports(os.environ, root))
        used = [port for port in ports if not explain_plugin(port)]
        left_out = [port.row(why=why) for port in ports if (why := explain_plugin(port))]
        if not used:
            return left_out
        gpus = _list_gpus() if gpus is None else gpus
        if len(gpus) < 2:
            return [port.row(why=FEW_GPUS.format(len(gpus))) for port in used] + left_out
        with ExitStack() as stack:
            pairs = [(port, choose_gpus(port.place, gpus)) for port in used]
            return _measure_ports(pairs, stack) + left_out
    except Exception as error:  # a full disk
        return [{"name": "", "why": _describe(error)}]


def explain_plugin(port: CardPort) -> str:
    """Why NCCL cannot use this port by itself; empty if it can."""
    try:
        driver = (port.place / "driver").readlink().name
    except OSError:
        driver = ""
    if port.layer in LAYERS and driver != EFA:
        return ""
    known = [f"link layer {port.layer or 'unknown'}", *([f"driver {driver}"] if driver else [])]
    why = "NCCL uses it only by a plugin, for which no single port can be chosen"
    return f"{why} ({', '.join(known)})"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]


def _list_gpus() -> list[Path | None]:
    import torch

    numbers = range(torch.cuda.device_count())
    return [find_pci_device(torch.device("cuda", number)) for number in numbers]


def _measure_ports(
    ports: Sequence[tuple[CardPort, Sequence[int]]], stack: ExitStack
) -> list[dict[str, Any]]:
    limit_s = min(MOST_S, TURN_S + PORT_S * len(ports))
    until = time.monotonic() + limit_s
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    ranks: list[CardRanks] = []
    rows = []
    for turn, (port, gpus) in enumerate(ports):
        for number in range(len(ranks), min(turn + AT_ONCE, len(ports))):
            other, own = ports[number]
            ranks.append(CardRanks(folder / str(number), other, [f"cuda:{gpu}" for gpu in own]))
            stack.callback(ranks[-1].end)
        left_s = until - time.monotonic()
        if left_s > 0:
            found = {"gpus": list(gpus), **ranks[turn].measure(min(TURN_S, left_s))}
        else:  # without GPUs: it was not tried
            found = {"why": f"no time was left: all {len(ports)} ports have {limit_s:g} s"}
        ranks[turn].end()
        rows.append(port.row(**found))
    return rows


class CardRanks:
    """The two processes that use one port, each on a device of its own."""

    def __init__(self, folder: Path, port: CardPort, devices: Sequence[str]) -> None:
        self._folder, self._port = folder, port
        self._processes: list[subprocess.Popen[bytes]] = []
        self._why = ""  # it cannot be measured
        kept = {name: v for name, v in os.environ.items() if not name.startswith(OF_RANKS)}
        own = {BY_DEVICE: f"={port.name}", "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log")}
        try:
            folder.mkdir()
            for rank, device in enumerate(devices):
                self._processes.append(self._start(rank, device, {**kept, **ALONE, **own}))
        except OSError as error:  # no memory for one more process
            self._why = _describe(error)

    def _start(self, rank: int, device: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        words = [*COMMAND, str(self._folder), str(rank), device]
        with (self._folder / f"{rank}.err").open("wb") as errors:
            return subprocess.Popen(
                words, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )

    def measure(self, limit_s: float) -> dict[str, Any]:
        """What a row says: GB/s, or why there are none."""
        try:
            if why := (self._why or self._run(limit_s) or explain_log(self._folder, self._port)):
                return {"why": why[:MAX_WORDS]}
            values = [read_json(self._folder / f"{rank}.json") or {} for rank in range(2)]
        except Exception as error:  # a log that cannot be read
            return {"why": _describe(error)}
        speeds = [parse_finite(value.get("gb_per_s")) or 0.0 for value in values]
        return {"gb_per_s": min(speeds)} if min(speeds) > 0 else {"why": "no figure was written"}

    def _run(self, limit_s: float) -> str:
        """Give both their turn; returns why they failed."""
        for process in self._processes:
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
        self._wait(limit_s)
        failed = [rank for rank, process in enumerate(self._processes) if process.returncode]
        hangs = any(process.returncode is None for process in self._processes)
        self.end()
        if failed:
            words = (self._folder / f"{failed[0]}.err").read_text(errors="replace")
            status = f"exit status {self._processes[failed[0]].returncode}"
            return find_error(words) or status
        return f"no answer within {limit_s:.1f} s" if hangs else ""

    def _wait(self, limit_s: float) -> None:
        """Until both have ended, or one has failed: the other would wait for it."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            codes = [process.poll() for process in self._processes]
            if None not in codes or any(codes):
                return
            time.sleep(LOOK_S)

    def end(self) -> None:
        """End what is left of them. One that hangs in the driver does not end, and is left."""
        for process in self._processes:
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
            process.kill()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)


def explain_log(folder: Path, port: CardPort) -> str:
    """What NCCL says that it used in place of this port; empty if it used nothing else."""
    reader = Reader()
    for path in sorted(folder.glob("nccl.*.log")):
        reader.file(path)
    edges = reader.log().edges
    if {(edge.source, edge.destination) for edge in edges} != {(0, 1), (1, 0)}:
        return "NCCL's log does not name both connections between its two ranks"
    others = {
        " ".join(filter(None, (edge.kind, edge.nic)))
        for edge in edges
        if not edge.kind.startswith("NET/IB") or edge.nic != port.name.partition(":")[0]
    }
    return f"NCCL used {shorten(sorted(others), MAX_NAMED)} in its place" if others else ""


def measure_ring(folder: Path, rank: int, device: Any) -> float:
    """GB/s of an all-reduce over two ranks (its bus bandwidth), as this one sees it."""
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting, limit = f"file://{folder / 'meeting'}", datetime.timedelta(seconds=TURN_S)
    backend = backend_of(device)
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=2, timeout=limit)
    values = torch.ones(BYTES // 4, dtype=torch.float32, device=device)
    seconds = [_time_calls(values) for _ in range(ROUNDS + 1)][1:]  # the first opens connections
    expected = 2.0 ** (CALLS * (ROUNDS + 1))
    if not bool((values == expected).all()):
        raise RuntimeError("the all-reduce gave a wrong sum")
    dist.barrier()
    dist.destroy_process_group()
    return BYTES / typical_s(seconds) / GB


def _time_calls(values: Any) -> float:
    """Seconds of one of some calls in a row."""
    import torch
    import torch.distributed as dist

    def settle() -> None:
        if values.device.type == "cuda":
            torch.cuda.synchronize(values.device)

    settle()
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(values)
    settle()
    return max(time.perf_counter() - began, 1e-9) / CALLS


def _read_word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def main(arguments: Sequence[str]) -> None:
    folder, rank, device = arguments
    import torch  # takes seconds: before its turn

    if sys.stdin.readline():  # empty if the process that gives turns is gone
        speed = measure_ring(Path(folder), int(rank), torch.device(device))
        write_json(Path(folder) / f"{rank}.json", {"gb_per_s": speed})


if __name__ == "__main__":
    main(sys.argv[1:])
