"""`--cluster-exclusive`: one such run of a cluster at a time, on all hosts that see its shared_dir.

A lock of fcntl(2) on a file there says it: the kernel, or the NFS server, gives it back when its
holder ends, however it ended. The text in the file only names the holder to whoever meets the lock;
without the lock it says nothing.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import pwd
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any

from . import clean
from .errors import Problem, UsageProblems

OPTION = "--cluster-exclusive"
MODE = 0o666
MAX_BYTES = 4096
MAX_WORD = 80
# Between taking the lock and naming itself in the file a holder needs no longer.
NAMED_AFTER_S = 1.0
POLL_S = 0.05
READ_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Exclusive:
    """The lock, held by this process until `release` or its end.

    Its file must not be opened a second time meanwhile: closing any descriptor of it would give a
    lock of fcntl back.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        if self._fd >= 0:
            with suppress(OSError):  # a text that stays behind says nothing
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def lock_path(shared_dir: Path, cluster: str) -> Path:
    """Profiles that share a directory have a lock each."""
    return shared_dir / f".exclusive.{cluster}.lock"


def take(shared_dir: Path, cluster: str, run_id: str) -> Exclusive:
    """Take the lock, or say who has it. Never waits for it. Raises UsageProblems."""
    path = lock_path(shared_dir, cluster)
    try:
        shared_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = _open(path)
    except PermissionError as error:
        raise _of_another(path, cluster, error) from error
    except OSError as error:
        raise _unusable(path, "cannot be opened", error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "no regular file")
        _open_to_all(fd)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(fd, _about(run_id))
    except OSError as error:
        os.close(fd)
        if error.errno in (EACCES, EAGAIN):
            raise _taken(path, cluster) from error
        raise _unusable(path, "cannot be locked", error) from error
    return Exclusive(path, fd)


def _open(path: Path) -> int:
    """Made only where it is not there: in a directory with a sticky bit Linux lets nobody open
    another's file with O_CREAT (fs.protected_regular)."""
    try:
        return os.open(path, READ_WRITE)
    except FileNotFoundError:
        return os.open(path, READ_WRITE | os.O_CREAT, MODE)


def _open_to_all(fd: int) -> None:
    """Undo the umask on a file of ours: whoever can reach the directory can lock the cluster."""
    info = os.fstat(fd)
    own = info.st_uid == os.geteuid() and info.st_nlink == 1
    if own and stat.S_IMODE(info.st_mode) != MODE:
        with suppress(OSError):  # a file system without modes
            os.fchmod(fd, MODE)


def _about(run_id: str) -> dict[str, Any]:
    """What the file says of its holder."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # this machine knows no name for it
        user = str(os.getuid())
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {
        "run_id": run_id,
        "user": user,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": since,
    }


def _write(fd: int, about: Mapping[str, Any]) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, (json.dumps(about) + "\n").encode(), 0)
    os.fsync(fd)  # a reader on another host finds it on the file server


def _read(path: Path) -> dict[str, Any]:
    """What the file says now; nothing where it cannot be read. Opened anew each time: that is when
    a client of NFS asks the server."""
    try:
        fd = os.open(path, READ)
        try:
            told = json.loads(os.pread(fd, MAX_BYTES, 0))
        finally:
            os.close(fd)
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _taken(path: Path, cluster: str) -> UsageProblems:
    """Who has the lock; a holder may be about to say so."""
    deadline = time.monotonic() + NAMED_AFTER_S
    while not (told := _read(path)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    who = _holder(told) if told else "a run that has not said who it is has it"
    return UsageProblems(
        [
            Problem(
                f"{cluster} is in use: {who}; {path}",
                OPTION,
                todo=f"wait until that run has ended, or leave {OPTION} away",
            )
        ]
    )


def _holder(told: Mapping[str, Any]) -> str:
    word = {key: clean.line(str(value))[:MAX_WORD] for key, value in told.items()}
    return (
        f"run {word.get('run_id')} has it since {word.get('since')} "
        f"(pid {word.get('pid')} of {word.get('user')} on {word.get('host')})"
    )


def _of_another(path: Path, cluster: str, error: OSError) -> UsageProblems:
    """The file of another user that cannot be locked from here; what it says need not hold."""
    try:
        uid = path.lstat().st_uid
    except OSError:
        return _unusable(path, "cannot be opened", error)
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = f"uid {uid}"
    told = _read(path)
    last = f"; by what it says, {_holder(told)}" if told else ""
    return UsageProblems(
        [
            Problem(
                f"the lock {path} of {cluster} belongs to {owner} and cannot be opened "
                f"({error.strerror}){last}",
                OPTION,
                "a lock that this user may read and write",
                todo=f"have {owner} run chmod 666 on it, or remove it when no run has it",
            )
        ]
    )


def _unusable(path: Path, what: str, error: OSError) -> UsageProblems:
    return UsageProblems(
        [
            Problem(
                f"the lock {path} {what} ({error.strerror or error})",
                OPTION,
                "a `shared_dir` that this user can write, on a file system with locks "
                "(Lustre has them when mounted with `flock`)",
            )
        ]
    )
