"""Ends a lab: its processes, interfaces and directories, and nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from . import daemons, lab_paths, lab_processes, lab_state, memory_limits, packages
from .lab_settings import LabError
from .lab_state import LabRecord

# As long as Slurm's KillWait: processes of a job may still write their last output.
TIMEOUT_S = 2.0
STARTER_TIMEOUT_S = 15.0


def end_lab(record: LabRecord, keep_logs: bool = False) -> Path | None:
    """End a lab and remove its directory; return where the logs are, if kept.

    Raises LabError if it runs on another host or one of its processes does not end.
    """
    if not record.here:
        raise LabError(f"lab {record.name} runs on {record.host}; end it there")
    root = record.files.root
    _end_starter(record)
    record = lab_state.read_record(record.name, root)
    left = _end_processes(record)
    if record.token:
        memory_limits.remove_group(record.token)
    for link in record.links:
        _remove_link(link)
    if left:
        pids = ", ".join(f"{process.pid} ({process.role})" for process in left)
        raise LabError(
            f"lab {record.name}: processes still running after SIGKILL: {pids}; see {root}"
        )
    kept = _keep_logs(record) if keep_logs else None
    remove_directory(record)
    return kept


def _end_starter(record: LabRecord) -> None:
    """Stop a `lab up` that still runs and let it clean up; the caller ends what is left."""
    starter = record.starter
    if starter is None or starter.pid == os.getpid():
        return
    lab_processes.send([starter], signal.SIGTERM)
    if lab_processes.wait_until_gone([starter], STARTER_TIMEOUT_S):
        lab_processes.send([starter], signal.SIGKILL)
        lab_processes.wait_until_gone([starter], TIMEOUT_S)


def _end_processes(record: LabRecord) -> list[lab_processes.Process]:
    """End the daemons first, so that no job or step restarts, then the processes of jobs."""
    if not record.booted:
        return []
    journalled = [process for process in record.daemons if process.alive]
    confs = (record.files.slurm_conf, record.files.daemons_conf)
    candidates = lab_processes.find_processes(record.token, confs) if record.token else []
    known = {process.pid for process in journalled}
    left = lab_processes.end(
        [*journalled, *(p for p in candidates if p.pid not in known)], TIMEOUT_S
    )
    daemons.reap()
    # A step that was being launched meanwhile may have started since.
    late = lab_processes.find_processes(record.token, confs) if record.token else []
    return left + lab_processes.end(late, 0.0)


def _remove_link(name: str) -> None:
    """Remove a network interface, unless it disappeared with the namespace of its other end."""
    if (Path("/sys/class/net") / name).exists():
        ip = packages.program_path("ip")
        subprocess.run([ip, "link", "del", name], capture_output=True, stdin=subprocess.DEVNULL)


def _keep_logs(record: LabRecord) -> Path:
    """Move the logs out of the lab; they replace those of an earlier lab of this name."""
    kept = lab_paths.labs_home().parent / "logs" / record.name
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.rmtree(kept, ignore_errors=True)
    if record.files.logs.is_dir():
        shutil.move(record.files.logs, kept)
    return kept


def remove_directory(record: LabRecord) -> None:
    """Remove a lab's directory and its name, if the directory has a lab's journal or is empty."""
    root, run = record.files.root, record.files.run
    entry = lab_paths.labs_home() / record.name
    if record.token:
        # A daemon that ended a moment ago may have written meanwhile.
        for _ in range(3):
            for path in {run, root}:
                shutil.rmtree(path, ignore_errors=True)
            if not root.exists():
                break
            time.sleep(0.1)
    elif root.is_dir():
        try:
            root.rmdir()
        except OSError as error:
            raise LabError(
                f"{root} contains files that do not belong to a lab "
                f"({lab_paths.journal_of(root).name} is missing); remove it by hand"
            ) from error
    if entry.is_symlink():
        entry.unlink()
    if root.exists():
        raise LabError(f"{root} could not be removed; remove it by hand")
