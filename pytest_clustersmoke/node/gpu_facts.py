"""Reads this node's GPUs from nvidia-smi, and finds the ones that belong to the job.

Field names and wording: nvidia-smi(1), `--help-query-gpu`, `--help-query-remapped-rows`,
`--help-query-compute-apps`. Each group of fields is a query of its own: nvidia-smi returns nothing
if it does not know one of the fields ("is not a valid field to query").
"""

from __future__ import annotations

import os
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
        ("uuid", "clocks.max.sm"),
        ("uuid", "power.limit"),
        ("uuid", "vbios_version"),
    ),
    "--query-remapped-rows": (("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure"),),
}
PROCESSES = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
# Without its persistence daemon the driver initialises each GPU for every query: seconds each.
TIMEOUT_S = 30.0
# Processes of a job that has just ended stay listed for a moment, so they are queried twice.
LOOK_AGAIN_S = 2.0
MAX_WORDS = 400
# The multi-process service sits between all processes and the GPU; it is not a user of it.
SERVICES = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
# Errors of nvidia-smi itself, not of the driver: they say nothing about the GPUs.
TOOL_ONLY = ("Insufficient Permissions", "couldn't find libnvidia-ml")
NO_GPU = "No devices were found"
PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # NVIDIA's vendor number; the class of GPUs (pci.ids)
# Signs of a GPU that torch can use: NVIDIA's driver, AMD's, and Windows' under WSL.
DRIVERS = ("/proc/driver/nvidia/version", "/dev/kfd", "/dev/dxg")


class Answer(NamedTuple):
    """A command's output, or None if it failed; `words` is then its error."""

    text: str | None
    words: str = ""


def _find_tool(name: str) -> str | None:
    """The path of a program. Not by shutil, whose import takes longer than all of this module's."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    # `is_file` raises an error for a folder that this user may not enter; `access` does not.
    return next((path for path in paths if os.access(path, os.X_OK) and Path(path).is_file()), None)


def query_gpus(health: bool, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The facts of the GPUs, null where they cannot be known.

    With `health`, also query errors, modes and processes; otherwise only list the GPUs.
    """
    on_bus = count_gpus_on_bus()
    facts: dict[str, Any] = {
        "gpus": None,
        "gpu_processes": None,
        "gpu_tool_failed": None,
        "gpu_driver": has_driver(),
        "gpu_on_bus": None if on_bus is None else on_bus > 0,
        "gpus_on_bus": on_bus,
        "cuda_visible_devices": environ.get("CUDA_VISIBLE_DEVICES"),
        "cuda_device_order": environ.get("CUDA_DEVICE_ORDER"),
    }
    tool = _find_tool("nvidia-smi")
    if tool is None:
        return facts
    (listing,) = run_all([[tool, f"--query-gpu={','.join(LISTED)}", "--format=csv,noheader"]])
    if listing.text is None and NO_GPU in listing.words:
        return facts | {"gpus": []}
    if listing.text is None:
        tool_only = any(error in listing.words for error in TOOL_ONLY)
        return facts | {"gpu_tool_failed": None if tool_only else listing.words}
    facts["gpus"] = [dict(zip(LISTED, row, strict=False)) for row in _rows(listing.text)]
    if health and facts["gpus"]:
        _add_health(tool, facts)
    return facts


def _add_health(tool: str, facts: dict[str, Any]) -> None:
    groups = [(option, fields) for option, lists in HEALTH.items() for fields in lists]
    queries = [f"{option}={','.join(fields)}" for option, fields in groups]
    *answers, processes = run_all(
        [[tool, query, "--format=csv,noheader"] for query in (*queries, PROCESSES)]
    )
    by_uuid = {gpu.get("uuid"): gpu for gpu in facts["gpus"]}
    for (_, fields), answer in zip(groups, answers, strict=True):
        for uuid, *values in _rows(answer.text or ""):
            by_uuid.get(uuid, {}).update(zip(fields[1:], values, strict=False))
    facts["gpu_processes"] = parse_processes(processes.text, by_uuid)
    if busy_processes(facts):
        time.sleep(LOOK_AGAIN_S)
        (again,) = run_all([[tool, PROCESSES, "--format=csv,noheader"]])
        if (seen := parse_processes(again.text, by_uuid)) is not None:
            left = {process["pid"] for process in seen}
            facts["gpu_processes"] = [p for p in facts["gpu_processes"] if p["pid"] in left]


def parse_processes(text: str | None, known: Iterable[Any]) -> list[dict[str, str]] | None:
    """The processes on the GPUs `known`; a process's name may contain commas."""
    if text is None:
        return None
    processes = []
    for gpu, pid, *rest in (row for row in _rows(text) if len(row) > 3):
        name, memory = ", ".join(rest[:-1]), rest[-1]
        if gpu in known and Path(name).name not in SERVICES:
            processes.append({"gpu": gpu, "pid": pid, "name": name[:MAX_WORDS], "memory": memory})
    return processes


class Share(NamedTuple):
    """The GPUs that the job's ranks see. If not `exact`, only their number is known."""

    gpus: list[dict[str, str]]
    exact: bool


def share(facts: Mapping[str, Any]) -> Share | None:
    """The job's GPUs among those that nvidia-smi lists, reading CUDA_VISIBLE_DEVICES as CUDA does:
    up to the first entry that names no GPU. None if they cannot be known."""
    gpus = rows(facts, "gpus")
    if gpus is None:
        return None
    visible = facts.get("cuda_visible_devices")
    if not isinstance(visible, str):
        return Share(gpus, True)
    ours: list[dict[str, str]] = []
    by_index = False
    for entry in (word.strip() for word in visible.split(",")):
        if entry.startswith("MIG-"):
            return None  # nvidia-smi does not list parts of GPUs
        if entry.isascii() and entry.isdigit() and len(entry) < 6:
            chosen = gpus[int(entry) : int(entry) + 1]
            by_index = True
        else:
            by_uuid = entry.startswith("GPU-")
            chosen = [gpu for gpu in gpus if by_uuid and gpu.get("uuid", "").startswith(entry)]
        if not chosen:
            break
        ours += chosen[:1]
    # CUDA counts from the fastest GPU, nvidia-smi by bus: the same order if all are of one model.
    one_model = len({gpu.get("name") for gpu in gpus}) < 2
    by_bus = facts.get("cuda_device_order") == "PCI_BUS_ID"
    return Share(ours, not by_index or one_model or by_bus)


def busy_processes(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The processes on the job's GPUs. GPUs divided by MIG do not count, since a process may run
    in a part that belongs to another job."""
    ours, processes = share(facts), rows(facts, "gpu_processes")
    if ours is None or not ours.exact or processes is None:
        return []
    uuids = {gpu.get("uuid") for gpu in ours.gpus if gpu.get("mig.mode.current") != "Enabled"}
    return [process for process in processes if process.get("gpu") in uuids]


def rows(facts: Mapping[str, Any], key: str) -> list[dict[str, str]] | None:
    """A table of the facts, without values that are not text; None if there is no table."""
    value = facts.get(key)
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        return None
    return [{k: text for k, text in row.items() if isinstance(text, str)} for row in value]


def has_driver() -> bool:
    """Whether there is a driver or device of a GPU that torch could use."""
    return any(Path(path).exists() for path in DRIVERS) or any(Path("/dev").glob("nvidia[0-9]*"))


def count_gpus_on_bus() -> int | None:
    """How many NVIDIA GPUs are on the PCI bus, with or without a driver, also those that a cgroup
    hides from the job; None if the bus is not visible, or if GPUs are attached in another way
    (WSL)."""
    devices = list(PCI.glob("*"))
    if not devices or Path("/dev/dxg").exists():
        return None
    return sum(
        _read_word(device / "vendor") == NVIDIA and _read_word(device / "class").startswith(DISPLAY)
        for device in devices
    )


def _read_word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def run_all(commands: list[list[str]], timeout_s: float | None = None) -> list[Answer]:
    """Run these commands at the same time and return their answers.

    With a broken driver a tool can hang in uninterruptible sleep: it is killed, but not waited for.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    started = [_start(command) for command in commands]
    deadline = time.monotonic() + timeout_s
    late = f"no answer within {timeout_s:g} s"
    return [_answer(process, deadline, late) for process in started]


def _start(command: list[str]) -> Any:
    """Its process, or the OSError why there is none."""
    import subprocess  # late: the screen of a node without GPUs takes 6 % less CPU time without it

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


def _answer(process: Any, deadline: float, late: str) -> Answer:
    import subprocess

    if isinstance(process, OSError):
        return Answer(None, f"cannot run it: {process.strerror or process}")
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return Answer(None, late)
    if process.returncode == 0:
        return Answer(output)
    text = " ".join(f"{output} {errors}".split())  # errors may be on stdout or stderr
    return Answer(None, f"exit status {process.returncode}: {text[:MAX_WORDS]}")


def _rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()
    ]
