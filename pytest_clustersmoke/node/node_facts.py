"""Facts of a node: host, hardware, versions, limits. Read without importing torch.

Every fact is best effort, and `null` if it cannot be known: a node without `nvidia-smi`, for
example, still writes its facts.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..evidence.variable_names import filter_variables
from . import gpu_facts, installed_packages, network_facts

# NCCL's configuration file for the whole node; reading of it and of users' files is limited.
NCCL_CONF = "/etc/nccl.conf"
MAX_CONF_BYTES = 64 * 2**10
DEV_SHM = "/dev/shm"
# linux/capability.h: with this capability the limit on locked memory does not apply.
CAP_IPC_LOCK = 14


Facts = dict[str, Any]


def fact_groups(node_rank: int, node_name: str, device: str) -> dict[str, Callable[[], Facts]]:
    """What collects the facts of a node, by the part of it that each asks. A part may hang: the
    screen of a node has a limit for each."""
    return {
        "kernel": lambda: _kernel_facts(node_rank, node_name),
        "packages": installed_packages.describe_packages,
        "gpus": lambda: gpu_facts.query_gpus(health=device != "cpu"),
        "network": network_facts.describe_network,
        "settings": _settings,
        "directories": lambda: {**_dev_shm(), **scratch_directories(os.environ)},
    }


def gather_node_facts(node_rank: int, node_name: str, device: str = "auto") -> Facts:
    """The facts of this node as plain data; sizes in bytes, times in seconds.

    `device` is what the ranks train on: for "cpu" the health of GPUs is not queried.
    """
    groups = fact_groups(node_rank, node_name, device)
    return {name: value for collect in groups.values() for name, value in collect().items()}


def _kernel_facts(node_rank: int, node_name: str) -> Facts:
    return {
        "node_rank": node_rank,
        "node": node_name,
        "host": socket.gethostname(),
        "time": time.time(),
        "boot_id": _read_text("/proc/sys/kernel/random/boot_id"),
        "network_namespace": _read_link("/proc/self/ns/net"),
        "kernel": os.uname().release,
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpus_online": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _settings() -> Facts:
    """The environment that the ranks inherit (the launcher adds its own: NCCL_DEBUG_FILE and the
    like), and the limits of a process."""
    return {
        "variables": filter_variables(os.environ),
        "nccl_conf": _nccl_conf(),
        "memlock_limit_bytes": _soft_limit(resource.RLIMIT_MEMLOCK),
        "may_lock_memory": _may_lock_memory(),
        "open_files_limit": _soft_limit(resource.RLIMIT_NOFILE),
    }


def _nccl_conf() -> dict[str, dict[str, str]]:
    """The variables set in NCCL's configuration files, the file with precedence first. NCCL uses
    them if the environment does not set them. Parsed as in its setEnvFile (src/misc/param.cc)."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    users = os.environ.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else "")
    variables = {}
    for path in filter(None, (users, NCCL_CONF)):
        try:
            if not Path(path).is_file():  # opening a FIFO of that name would block forever
                continue
            with Path(path).open(errors="replace") as stream:
                lines = stream.read(MAX_CONF_BYTES).split("\n")
        except OSError:
            continue
        pairs: dict[str, str] = {}
        for line in lines:
            name, is_setting, value = line.partition("=")
            if is_setting and not line.startswith("#"):
                pairs.setdefault(name, value)
        variables[path] = filter_variables(pairs)
    return variables


def _read_text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def _read_link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None


def _dev_shm() -> dict[str, int | None]:
    try:
        usage = os.statvfs(DEV_SHM)
    except OSError:
        return {"dev_shm_bytes": None, "dev_shm_free_bytes": None}
    total, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
    return {"dev_shm_bytes": total, "dev_shm_free_bytes": free}


def _may_lock_memory() -> bool | None:
    """Whether this process may lock memory beyond the limit."""
    status = _read_text("/proc/self/status") or ""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.M)
    return bool(int(match.group(1), 16) >> CAP_IPC_LOCK & 1) if match else None


def _soft_limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


# The node's directories that ranks write to: for temporary files and for builds.

DEFAULT = "/tmp"
FALLBACKS = (DEFAULT, "/var/tmp", "/usr/tmp")  # as Python's tempfile has them
PROBE_BYTES = 4096


def scratch_directories(environ: Mapping[str, str]) -> dict[str, Any]:
    """The facts `tmp` and `build_directory`; the second is null if the profile names none.

    Each has its `path`, the `error` why it cannot be used (or null), and its `free_bytes`. If
    `tmp` cannot be used, `instead` is the directory that Python uses in its place, or null.
    """
    path = environ.get("TMPDIR") or DEFAULT
    tmp = _probe_directory(path)
    if tmp["error"]:
        usable = (
            other for other in FALLBACKS if other != path and not _probe_directory(other)["error"]
        )
        tmp["instead"] = next(usable, None)
    build = environ.get("TORCH_EXTENSIONS_DIR")
    return {"tmp": tmp, "build_directory": _probe_parent(build) if build else None}


def _probe_directory(path: str) -> dict[str, Any]:
    error = None
    try:
        probe = Path(path, f".clustersmoke.{os.urandom(4).hex()}")
        with probe.open("xb") as stream:
            probe.unlink()
            stream.write(b"\0" * PROBE_BYTES)
            stream.flush()
    except OSError as failed:
        error = failed.strerror or str(failed)
    return {"path": path, "error": error, "free_bytes": _free_bytes(path)}


def _probe_parent(path: str) -> dict[str, Any]:
    """Check whether a directory, or if it does not exist its first existing parent, is writable.

    Nothing is written, since another process may be building there."""
    directory = Path(path)
    parents = (directory, *directory.parents)
    # Path.exists raises an error below a directory that this user may not enter.
    existing = next((each for each in parents if os.path.exists(each)), None)  # noqa: PTH110
    usable = existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    error = None if usable else f"cannot write to {existing}"
    return {"path": path, "error": error, "free_bytes": _free_bytes(str(existing))}


def _free_bytes(path: str) -> int | None:
    try:
        usage = os.statvfs(path)
    except OSError:
        return None
    return usage.f_bavail * usage.f_frsize
