"""How fast every two GPUs of a node copy to each other, both ways, and what connects them.

    python -m pytest_clustersmoke.rank.pair_copies

measures it in a process of its own and prints JSON: a process keeps some 500 MiB on each GPU that
it ever used, which the training must not lose. The ranks of the node wait meanwhile and use no GPU.

What connects two GPUs is asked of NVML (package `nvidia-ml-py`), in the words of `nvidia-smi topo`;
without an answer it is unknown, and the pair is not compared with others.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from ..evidence.telemetry import typical_s
from .known_answer import time_call
from .memory_speed import GB

COMMAND = [sys.executable, "-m", "pytest_clustersmoke.rank.pair_copies"]
LIMIT_S = 60.0  # of the process; a copy that hangs must not cost the stage
PAIR_BYTES, COPIES, ROUNDS = 2**26, 4, 3
MAX_WORDS = 300
NVLINK, BY_HOST = "NVLink", " through the host"
# NVML's levels of what two GPUs have in common (nvmlGpuTopologyLevel_t).
LEVELS = {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
EXCLUSIVE = "busy or unavailable"  # CUDA's words where only one process may use a GPU


def measure_pairs(
    devices: Sequence[Any], name_link: Callable[[int, int], str]
) -> list[dict[str, Any]]:
    """A row for each ordered pair of devices: their numbers, what connects them, and GB/s. The
    pairs are measured in turns, so that a drift of the clocks meets all of them."""
    import torch

    stores = [torch.zeros(PAIR_BYTES, dtype=torch.uint8, device=device) for device in devices]
    targets = [torch.zeros_like(store) for store in stores]
    numbers = range(len(devices))
    pairs = [(first, second) for first in numbers for second in numbers if first != second]
    rounds: dict[tuple[int, int], list[float]] = {pair: [] for pair in pairs}
    for turn in range(-1, ROUNDS):
        for pair in pairs:
            first, second = pair
            seconds = _time_copies(devices[first], stores[first], targets[second])
            if turn >= 0:  # the first copies of a pair open the way
                rounds[pair].append(PAIR_BYTES / max(seconds, 1e-12) / GB)
    return [
        {"from": pair[0], "to": pair[1], "link": name_link(*pair), "gb_per_s": typical_s(speeds)}
        for pair, speeds in rounds.items()
    ]


def _time_copies(device: Any, store: Any, target: Any) -> float:
    import torch

    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with on_device:
        return time_call(device, lambda: target.copy_(store, non_blocking=True), COPIES)


def name_link(nvml: Any, uuids: Sequence[str], has_peer: bool) -> str:
    """What connects two GPUs, by the module `pynvml` or a fake of it; empty if it does not know.
    `has_peer`: whether one GPU may use the other's memory."""
    try:
        first, second = (nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids)
        index = nvml.NVML_P2P_CAPS_INDEX_NVLINK
        if nvml.nvmlDeviceGetP2PStatus(first, second, index) == nvml.NVML_P2P_STATUS_OK:
            return NVLINK
        level = LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second), "")
    except Exception:  # an old driver, an old package, a GPU without it
        return ""
    return level + BY_HOST if level and not has_peer else level


def measure_alone() -> str:
    """Measure in a process of its own; returns JSON: `pairs`, or `why` there are none."""
    try:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: a process that hangs in the driver does not end
        return _explain(f"no answer within {LIMIT_S:g} s")
    except OSError as error:
        return _explain(str(error))
    if process.returncode == 0:  # other lines are those of a library or of the site's Python
        return (output.decode(errors="replace").splitlines() or [""])[-1]
    words = errors.decode(errors="replace")
    if EXCLUSIVE in words:
        return json.dumps({"pairs": []})
    return _explain(find_error(words) or f"exit status {process.returncode}")


def find_error(words: str) -> str:
    """The error at the end of what Python wrote: CUDA's are followed by lines of advice."""
    lines = words.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    after = lines[frames[-1] + 1 :] if frames else []
    return (after or lines[-1:] or [""])[0]


def _explain(why: str) -> str:
    return json.dumps({"why": why[:MAX_WORDS]})


def main() -> None:
    import torch

    numbers = range(torch.cuda.device_count())
    devices = [torch.device("cuda", number) for number in numbers]
    known = [torch.cuda.get_device_properties(device) for device in devices]
    uuids = [f"GPU-{getattr(each, 'uuid', '')}" for each in known]
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # the package or the driver's library is missing
        nvml = None

    def find_link(first: int, second: int) -> str:
        has_peer = torch.cuda.can_device_access_peer(first, second)
        return name_link(nvml, (uuids[first], uuids[second]), has_peer)

    json.dump({"pairs": measure_pairs(devices, find_link)}, sys.stdout)


if __name__ == "__main__":
    main()
