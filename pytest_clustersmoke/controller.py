"""Who runs a run, and whether it still lives: so that a later command can tell a run that is under
way from one whose controller was killed.

The controller holds a lock on a file of the run's directory, which the kernel drops with the
process, and touches it now and then for hosts that do not see the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rundir import RunDir, read_json, write_json

if TYPE_CHECKING:
    from .cluster import Profile

# File systems without locks (Lustre mounted without `flock`) tell nothing: a run there is taken to
# live as long as a job may run.
LONGEST_S = 8 * 24 * 3600
# A controller shows every BEAT_S that it lives; clocks of hosts and of file servers differ.
BEAT_S, SILENT_S = 60.0, 1800.0


def describe(profile: Profile, run_id: str) -> dict[str, Any]:
    """What run.json says of a run: who asked for what, where and when (Unix seconds)."""
    hardware = profile.hardware
    return {
        "schema": 1,
        "run_id": run_id,
        "cluster": profile.name,
        "backend": profile.backend,
        "hardware": {
            "gpu": hardware.gpu,
            "device": hardware.device,
            "gpus_per_node": hardware.gpus_per_node,
            "interconnect": hardware.interconnect,
        },
        "require": list(profile.require),
        "begun": time.time(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "phases_chosen": [],
        "phases_of_cluster": list(profile.phases),
        "selection": "",
    }


class Controller:
    """The life of this process as the controller of one run."""

    def __init__(self, run: RunDir) -> None:
        self.about = read_json(run.run) or {}
        self._run = run
        self._fd = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks = _lock(self._fd) is True

    def announce(self, asked: Mapping[str, Any], report: Path) -> None:
        """Say what was chosen, here and where the report will be: whoever finds no report there
        knows by it where the evidence lies. Raises OSError where it cannot be written."""
        self.about.update(asked, locks=self._locks)
        write_json(self._run.run, self.about)
        report.mkdir(parents=True, exist_ok=True)
        write_json(report / "run.json", {**self.about, "evidence": str(self._run.root)}, 0o644)

    def release(self) -> None:
        os.close(self._fd)


@contextmanager
def seized(run: RunDir) -> Iterator[bool]:
    """Whether the run's controller is dead; while this lasts the run is ours, so that two commands
    do not report it both."""
    about = read_json(run.run) or {}
    try:
        fd = os.open(run.lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:  # it was never controlled, or it cannot be told now
        yield isinstance(error, FileNotFoundError)
        return
    try:
        taken = _lock(fd)
        free = not about.get("locks") if taken is None else taken
        yield free and _is_dead(about, os.fstat(fd).st_mtime)
    finally:
        os.close(fd)


def _is_dead(about: Mapping[str, Any], beat: float) -> bool:
    """Of a run whose lock is free. On some file systems locks hold on one host alone (Lustre's
    `localflock`, NFS' `local_lock`, BeeGFS), and on some there are none: then the beats tell."""
    if about.get("locks") and about.get("host") == socket.gethostname():
        return True
    return time.time() - beat > (SILENT_S if about.get("locks") else LONGEST_S)


def beat(run: RunDir) -> None:
    """Show other hosts that the controller lives; the watch over its jobs calls this."""
    with contextlib.suppress(OSError):
        os.utime(run.lock)


def _lock(fd: int) -> bool | None:
    """Take the lock; False where somebody has it, None where the file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
