"""The locks of `--cluster-exclusive` and of a run's controller.

A process holds both through filelock. The kernel, or the NFS server, releases a lock when its
holder ends, however it ended. The lock file stays, and means nothing unless it is locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from ..config.profile import Profile
from ..text import Problem, UsageProblems, sanitize_line
from .run_directory import RunDir, create_once, list_names, read_json, write_json
from .run_ownership import create_shared
from .run_request import describe_requester
from .telemetry import parse_rows
from .whole_files import make_shared_directory, shared_mode

OPTION = "--cluster-exclusive"
CLUSTER_MODE, RUN_MODE = 0o666, 0o600  # every user who can reach a cluster's directory can lock it
MAX_WORD = 80
# On a file system without locks (Lustre mounted without `flock`) a run counts as alive for this
# long, the longest that a job may run.
MAX_RUN_S = 8 * 24 * 3600
# The limit allows for clocks that differ between hosts and file servers.
HEARTBEAT_S, MAX_SILENCE_S = 10.0, 1800.0
# From another host a run can be taken over after this long without a beat: a controller that still
# lives then finds that it has a successor, and stops.
TAKEOVER_SILENCE_S = 60.0
# Another command that only looks at a run's lock holds it, shared, for a moment.
LOOK_S, LOOK_POLL_S = 1.0, 0.02
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # what flock says of a lock that is held


def cluster_lock_path(shared_dir: Path, cluster: str) -> Path:
    """The lock of one cluster: profiles that share a directory have a lock each."""
    return shared_dir / f".exclusive.{cluster}.lock"


def lock_cluster(shared_dir: Path, cluster: str, run_id: str) -> BaseFileLock:
    """Take the cluster's lock without waiting. Raises UsageProblems, naming the holder."""
    from filelock import FileLock, Timeout

    path = cluster_lock_path(shared_dir, cluster)
    lock = FileLock(
        path,
        mode=CLUSTER_MODE,
        thread_local=False,
        fallback_to_soft=False,  # a marker file would outlive its holder
        on_acquired=partial(_write_holder, run_id),
    )
    try:
        create_shared(shared_dir)
        lock.acquire(blocking=False)
    except Timeout:
        raise _in_use_problem(path, cluster) from None
    except OSError as error:
        raise _unusable_lock_problem(path, error) from error
    return lock


def _write_holder(run_id: str, fd: int) -> None:
    """Write the holder into the lock file, for messages of other runs."""
    import psutil

    about = {
        "run_id": run_id,
        "user": psutil.Process().username(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    os.ftruncate(fd, 0)
    os.pwrite(fd, (json.dumps(about) + "\n").encode(), 0)
    os.fsync(fd)  # so that other hosts see it on the file server


def _in_use_problem(path: Path, cluster: str) -> UsageProblems:
    word = {
        key: sanitize_line(str(value))[:MAX_WORD] for key, value in (read_json(path) or {}).items()
    }
    who = "held by a run that did not record its name"
    if word:
        who = (
            f"held by run {word.get('run_id')} since {word.get('since')} "
            f"(pid {word.get('pid')} of {word.get('user')} on {word.get('host')})"
        )
    todo = f"wait for that run to end, or omit {OPTION}"
    return UsageProblems(
        [Problem(f"{cluster} is in use: {who}; lock file {path}", OPTION, todo=todo)]
    )


def _unusable_lock_problem(path: Path, error: OSError) -> UsageProblems:
    what = f"the lock {path} cannot be taken ({error.strerror or error})"
    expected = (
        "a file that this user can write, on a file system with locks "
        "(Lustre has them when mounted with `flock`)"
    )
    return UsageProblems([Problem(what, OPTION, expected)])


def describe_run(profile: Profile, run_id: str) -> dict[str, Any]:
    """The content of run.json: what was requested, by which process, when (Unix seconds)."""
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
        **describe_requester(),
        "phases_chosen": [],
        "phases_of_cluster": list(profile.phases),
        "selection": "",
        **({} if profile.limits.publish == "all" else {"publish": profile.limits.publish}),
    }


class ControllerLock:
    """The lock of one run, held by this process while it is the run's controller."""

    def __init__(self, run: RunDir) -> None:
        self.about = read_json(run.run) or {}
        self._run = run
        self._lock = _run_lock(run)
        self._locks = _acquire(self._lock, LOOK_S) is True
        self._report: Path | None = None
        self._renewing = threading.Lock()

    def attach(self) -> None:
        """Note in run.json that this process controls the run from now on."""
        own = {"host": socket.gethostname(), "pid": os.getpid()}
        before = parse_rows(self.about.get("attached"))
        self.about |= {**own, "attached": [*before, {**own, "time": time.time()}]}

    def announce(self, asked: Mapping[str, Any], report: Path) -> None:
        """Write the selection into run.json, here and in the report's directory, where it leads to
        the evidence if no report follows. Raises OSError if it cannot be written."""
        self.about.update(asked, report=str(report))
        make_shared_directory(report)
        if "attached" in self.about:  # what was reported before may not be how its jobs ended
            (report / "report.json").unlink(missing_ok=True)
        self._report = report
        self._write()

    def renew(self) -> None:
        """Take the lock if the process that had it, from which this one took the run over, has
        ended meanwhile. To be called by the run's last controller only, once it has announced
        itself, from any thread."""
        with self._renewing:  # a second acquisition would need a second release
            if self._locks or self._report is None or _acquire(self._lock) is not True:
                return
            self._locks = True
            with contextlib.suppress(OSError):  # a full disk: the heartbeat decides
                self._write()

    def _write(self) -> None:
        assert self._report is not None
        self.about["locks"] = self._locks
        write_json(self._run.run, self.about)
        about = {**self.about, "evidence": str(self._run.root)}
        write_json(RunDir(self._report).run, about, shared_mode(self._report))

    def release(self) -> None:
        self._lock.release()


class Superseded(OSError):
    """Another controller has taken the run over, so this one must not touch its jobs or files."""


class Unclear(Superseded):
    """The run's directory does not show whether another controller has taken it over."""


class ControllerFence:
    """The number of this process among the controllers of a run: each takes the next one, and stops
    once there is a higher one."""

    def __init__(self, run: RunDir) -> None:
        """Raises OSError if the number cannot be written."""
        about = {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}
        list_names(run.root)  # clears NFS's cache of missing files
        number = 1
        while run.controller(number).exists() or not create_once(run.controller(number), about):
            number += 1
        self.successor = run.controller(number + 1)  # exists once another has taken the run over

    def check(self) -> None:
        """Raise Superseded if the run has another controller, or may have one (Unclear). To be
        called before every command that changes a job, and before every line of the journal."""
        try:
            # Listed, not looked up: NFS remembers for up to a minute that a file is missing.
            names = {path.name for path in self.successor.parent.iterdir()}
        except OSError as error:
            raise Unclear(f"cannot tell who controls this run: {error}") from error
        if self.successor.name in names:
            about = read_json(self.successor) or {}
            who = f"pid {about.get('pid')} on {sanitize_line(str(about.get('host')))[:MAX_WORD]}"
            raise Superseded(f"{who} has taken this run over")

    @property
    def is_superseded(self) -> bool:
        """Whether the run is known to have another controller."""
        try:
            self.check()
        except Superseded as error:
            return not isinstance(error, Unclear)
        return False


def find_holder(run: RunDir, silence_s: float) -> str:
    """Who controls a run, as `pid 7 on login1`; empty if its lock is free and, where another host
    may hold it unseen, the last beat is so long ago."""
    about = read_json(run.run) or {}
    seen = _look(run)
    is_free = not about.get("locks") if seen is None else seen
    if is_free and _is_silent(run, about, silence_s):
        return ""
    return f"pid {about.get('pid')} on {sanitize_line(str(about.get('host')))[:MAX_WORD]}"


@contextmanager
def seize_run(run: RunDir) -> Iterator[bool]:
    """Yield whether the run's controller is dead. Holds the run's lock meanwhile, so that two
    commands do not both report it."""
    about = read_json(run.run) or {}
    lock = _run_lock(run)
    try:
        taken = _acquire(lock)
        free = not about.get("locks") if taken is None else taken
        yield free and _is_dead(run, about)
    finally:
        lock.release()


def _run_lock(run: RunDir) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(run.lock, mode=RUN_MODE, thread_local=False, fallback_to_soft=False)


def _look(run: RunDir) -> bool | None:
    """Whether the run's lock is free; None if the file system has no locks. It is shared for a
    moment, for which a controller that starts waits, and other looks do not see it."""
    try:
        descriptor = os.open(run.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in HELD else None
    finally:
        os.close(descriptor)
    return True


def _acquire(lock: BaseFileLock, within_s: float = 0.0) -> bool | None:
    """Take the lock. False if another process holds it, None if the file system has no locks."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=within_s, poll_interval=LOOK_POLL_S)
    except Timeout:
        return False
    except OSError:
        return None
    return True


def _is_dead(run: RunDir, about: Mapping[str, Any]) -> bool:
    """Whether the controller of a run whose lock is free is dead. Some file systems have no locks,
    and on some they hold on one host alone (Lustre's `localflock`, NFS' `local_lock`, BeeGFS):
    there the heartbeat decides."""
    return _is_silent(run, about, MAX_SILENCE_S if about.get("locks") else MAX_RUN_S)


def _is_silent(run: RunDir, about: Mapping[str, Any], limit_s: float) -> bool:
    """Whether the controller of a run whose lock is free has sent no beat for so long; on its own
    host a lock that works and is free suffices."""
    if about.get("locks") and about.get("host") == socket.gethostname():
        return True
    try:
        silent_s = time.time() - run.run.stat().st_mtime
    except OSError:
        return False
    return silent_s > limit_s


def send_heartbeat(run: RunDir) -> None:
    """Show other hosts that the controller is alive; called by the watch over its jobs."""
    with contextlib.suppress(OSError):
        os.utime(run.run)
