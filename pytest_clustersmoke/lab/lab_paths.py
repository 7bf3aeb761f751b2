"""Where a lab's files are: one directory per lab, and a short one for sockets if needed.

labs_home()/<name>            the lab's directory, 0700 (or a link to what --dir names)
    journal.jsonl             what was started, in order; the first file that is written
    lab.json                  the lab, once it is up
    slurm.conf, gres.conf, cgroup.conf, plugstack.conf, slurmdbd.conf,
        munge.key, hosts
        daemons.conf              slurm.conf as the daemons read it, if that differs
    task_prolog               names the real GPUs of each node, if the lab has any
    dev/                      what stands in for the GPUs' devices
    log/<role>.log, .out      each daemon's own log, and what it printed
    spool/                    slurmctld's state, a spool directory for each node, the database
    run/                      sockets and pid files
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..text import plural
from .lab_settings import LabError

# The address of a Unix socket has 108 bytes, including the final zero.
SOCKET_BYTES = 107
# The longest name of a socket below the run directory: munged's own, the database's, and the one
# slurmd makes for every step (<node>_<job>.<step>, where the batch step's number has ten digits).
LONGEST_SOCKET = "spool/node63/node63_4294967295.4294967295"


def labs_home() -> Path:
    """The directory that holds this user's labs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    # Resolved, so that paths compare equal.
    return (base / "clustersmoke" / "labs").resolve()


@dataclass(frozen=True)
class LabDir:
    """The paths of one lab. `run` differs from `root/run` if that is too long for sockets."""

    root: Path
    run: Path

    @property
    def journal(self) -> Path:
        return journal_of(self.root)

    @property
    def state(self) -> Path:
        return state_of(self.root)

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def daemons_conf(self) -> Path:
        """The slurm.conf that the daemons read."""
        return self.root / "daemons.conf"

    @property
    def gres_conf(self) -> Path:
        return self.root / "gres.conf"

    @property
    def plugstack_conf(self) -> Path:
        return self.root / "plugstack.conf"

    @property
    def task_prolog(self) -> Path:
        return self.root / "task_prolog"

    @property
    def cgroup_conf(self) -> Path:
        return self.root / "cgroup.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        return self.root / "slurmdbd.conf"

    @property
    def munge_key(self) -> Path:
        return self.root / "munge.key"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    @property
    def devices(self) -> Path:
        return self.root / "dev"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "db.sock"

    @property
    def database(self) -> Path:
        return self.root / "spool" / "database"

    @property
    def controller_spool(self) -> Path:
        return self.root / "spool" / "slurmctld"

    def log(self, role: str) -> Path:
        return self.logs / f"{role}.log"

    def output(self, role: str) -> Path:
        return self.logs / f"{role}.out"

    def make(self) -> None:
        """Make every directory of the lab."""
        for path in (self.devices, self.logs, self.run / "spool", self.controller_spool):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)


def journal_of(root: Path) -> Path:
    return root / "journal.jsonl"


def state_of(root: Path) -> Path:
    return root / "lab.json"


def choose_run(root: Path) -> Path:
    """Choose the directory for sockets: the lab's own, or a short one if that is too long.

    Raises LabError if no directory fits or can be made.
    """
    if len(os.fsencode(root / "run" / LONGEST_SOCKET)) <= SOCKET_BYTES:
        return root / "run"
    name = "clustersmoke-" + hashlib.sha256(os.fsencode(root)).hexdigest()[:10]
    # Not /tmp: the nodes of an isolated lab have a /tmp of their own.
    candidates = [
        Path(base) for base in (os.environ.get("XDG_RUNTIME_DIR"), "/run", "/var/tmp") if base
    ]
    for base in candidates:
        path = base / name
        if len(os.fsencode(path / LONGEST_SOCKET)) <= SOCKET_BYTES and _make_private(path):
            return path
    raise LabError(
        f"{root}: the path has {plural(len(os.fsencode(root)), 'byte')}, too many for the sockets "
        f"below it (a socket's path may have {SOCKET_BYTES}), and no shorter directory could be "
        f"made in {', '.join(map(str, candidates))}; choose a shorter path with --dir"
    )


def _make_private(path: Path) -> bool:
    """Make a directory that only this user can enter; return whether it is one now."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) & 0o077 == 0
    return private and info.st_uid == os.getuid()
