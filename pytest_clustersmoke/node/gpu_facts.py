"""What nvidia-smi says of this node's GPUs, and which of them are the job's own.

Field names and wording: nvidia-smi(1), `--help-query-gpu`, `--help-query-remapped-rows`,
`--help-query-compute-apps`. Each group of fields is asked for by itself: nvidia-smi answers nothing
at all where it does not know one of them ("is not a valid field to query").
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LISTED = ("index", "name", "uuid", "driver_version", "memory.total", "pci.bus_id")
HEALTH = {
    "--query-gpu": (
        ("uuid", "ecc.errors.uncorrected.volatile.total", "persistence_mode"),
        ("uuid", "retired_pages.pending"),
        ("uuid", "mig.mode.current"),
    ),
    "--query-remapped-rows": (("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure"),),
}
PROCESSES = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
# Without its persistence daemon the driver starts each GPU anew for a question: seconds each.
TIMEOUT_S = 30.0
# Between two looks at processes: those of a job that has just ended are still listed for a moment.
LOOK_AGAIN_S = 2.0
MAX_WORDS = 400
# The multi-process service stands between all processes and the GPU; it is no user of it.
SERVICES = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
# What nvidia-smi says where it, and not the driver, is at fault: nothing is known of the GPUs then.
TOOL_ONLY = ("Insufficient Permissions", "couldn't find libnvidia-ml")
NO_GPU = "No devices were found"
PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # its vendor's number; the class of GPUs (pci.ids)
# Signs of a GPU that torch can use: NVIDIA's driver, AMD's, Windows' under WSL.
DRIVERS = ("/proc/driver/nvidia/version", "/dev/kfd", "/dev/dxg")


class Answer(NamedTuple):
    """A command's output where it ended well, else None; what it said where it did not."""

    text: str | None
    words: str = ""


def ask(health: bool, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The facts of GPUs, null where they cannot be known.

    `health`: ask for errors, modes and processes, too; else only for the GPUs there are.
    """
    found: dict[str, Any] = {
        "gpus": None,
        "gpu_processes": None,
        "gpu_tool_failed": None,
        "gpu_driver": has_driver(),
        "gpu_on_bus": on_bus(),
        "cuda_visible_devices": environ.get("CUDA_VISIBLE_DEVICES"),
        "cuda_device_order": environ.get("CUDA_DEVICE_ORDER"),
    }
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return found
    (listing,) = run_all([[tool, f"--query-gpu={','.join(LISTED)}", "--format=csv,noheader"]])
    if listing.text is None and NO_GPU in listing.words:
        return found | {"gpus": []}
    if listing.text is None:
        known = any(words in listing.words for words in TOOL_ONLY)
        return found | {"gpu_tool_failed": None if known else listing.words}
    found["gpus"] = [dict(zip(LISTED, row, strict=False)) for row in _rows(listing.text)]
    if health and found["gpus"]:
        _add_health(tool, found)
    return found


def _add_health(tool: str, found: dict[str, Any]) -> None:
    groups = [(option, fields) for option, lists in HEALTH.items() for fields in lists]
    questions = [f"{option}={','.join(fields)}" for option, fields in groups]
    *answers, processes = run_all(
        [[tool, question, "--format=csv,noheader"] for question in (*questions, PROCESSES)]
    )
    by_uuid = {gpu.get("uuid"): gpu for gpu in found["gpus"]}
    for (_, fields), answer in zip(groups, answers, strict=True):
        for uuid, *values in _rows(answer.text or ""):
            by_uuid.get(uuid, {}).update(zip(fields[1:], values, strict=False))
    found["gpu_processes"] = parse_processes(processes.text, by_uuid)
    if busy(found):
        time.sleep(LOOK_AGAIN_S)
        (again,) = run_all([[tool, PROCESSES, "--format=csv,noheader"]])
        still = {one["pid"] for one in parse_processes(again.text, by_uuid) or []}
        found["gpu_processes"] = [one for one in found["gpu_processes"] if one["pid"] in still]


def parse_processes(text: str | None, known: Iterable[Any]) -> list[dict[str, str]] | None:
    """The processes on the GPUs `known`; a process's name may have commas of its own."""
    if text is None:
        return None
    found = []
    for gpu, pid, *rest in (row for row in _rows(text) if len(row) > 3):
        name, memory = ", ".join(rest[:-1]), rest[-1]
        if gpu in known and Path(name).name not in SERVICES:
            found.append({"gpu": gpu, "pid": pid, "name": name[:MAX_WORDS], "memory": memory})
    return found


class Share(NamedTuple):
    """The GPUs that the job's ranks see. `exact`: these very ones, and not only so many."""

    gpus: list[dict[str, str]]
    exact: bool


def share(facts: Mapping[str, Any]) -> Share | None:
    """The job's own of the GPUs that nvidia-smi lists, as CUDA takes CUDA_VISIBLE_DEVICES: all up
    to the first entry that names none. None where it cannot be known."""
    gpus = rows(facts, "gpus")
    if gpus is None:
        return None
    visible = facts.get("cuda_visible_devices")
    if not isinstance(visible, str):
        return Share(gpus, True)
    found: list[dict[str, str]] = []
    by_index = False
    for entry in (word.strip() for word in visible.split(",")):
        if entry.startswith("MIG-"):
            return None  # parts of GPUs, which are not listed
        if entry.isascii() and entry.isdigit() and len(entry) < 6:
            chosen = gpus[int(entry) : int(entry) + 1]
            by_index = True
        else:
            named = entry.startswith("GPU-")
            chosen = [gpu for gpu in gpus if named and gpu.get("uuid", "").startswith(entry)]
        if not chosen:
            break
        found += chosen[:1]
    # CUDA counts from the fastest GPU, nvidia-smi by bus: the same where all are of one model.
    alike = len({gpu.get("name") for gpu in gpus}) < 2
    return Share(found, not by_index or alike or facts.get("cuda_device_order") == "PCI_BUS_ID")


def busy(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The processes on the job's own GPUs; those that are divided into parts are passed over, since
    a process may be in another's part."""
    ours, processes = share(facts), rows(facts, "gpu_processes")
    if ours is None or not ours.exact or processes is None:
        return []
    uuids = {gpu.get("uuid") for gpu in ours.gpus if gpu.get("mig.mode.current") != "Enabled"}
    return [one for one in processes if one.get("gpu") in uuids]


def rows(facts: Mapping[str, Any], key: str) -> list[dict[str, str]] | None:
    """A table of the facts, of which the texts alone count; None where there is none."""
    value = facts.get(key)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    return [{k: text for k, text in one.items() if isinstance(text, str)} for one in value]


def has_driver() -> bool:
    """Whether there is any sign of a GPU that torch could use."""
    return any(Path(path).exists() for path in DRIVERS) or any(Path("/dev").glob("nvidia[0-9]*"))


def on_bus() -> bool | None:
    """Whether an NVIDIA GPU is on the PCI bus, with a driver or without; None where it is not
    shown, or where GPUs come another way."""
    devices = list(PCI.glob("*"))
    if not devices or Path("/dev/dxg").exists():
        return None
    return any(
        _word(one / "vendor") == NVIDIA and _word(one / "class").startswith(DISPLAY)
        for one in devices
    )


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def run_all(commands: list[list[str]]) -> list[Answer]:
    """What these commands say, run at the same time.

    A tool of a sick driver can sleep so that no signal ends it: it is killed, but not waited for.
    """
    started = [_start(command) for command in commands]
    deadline = time.monotonic() + TIMEOUT_S
    return [_answer(process, deadline) for process in started]


def _start(command: list[str]) -> subprocess.Popen[str] | OSError:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return error


def _answer(process: subprocess.Popen[str] | OSError, deadline: float) -> Answer:
    if isinstance(process, OSError):
        return Answer(None, f"cannot run it: {process.strerror or process}")
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return Answer(None, f"no answer within {TIMEOUT_S:g} s")
    if process.returncode == 0:
        return Answer(output)
    said = " ".join(f"{output} {errors}".split())  # its errors come on either
    return Answer(None, f"exit status {process.returncode}: {said[:MAX_WORDS]}")


def _rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()
    ]
