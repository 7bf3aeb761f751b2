"""Where the daemons listen.

Told not to listen on every address, they bind to the address that the host's own name resolves
to, whatever their configuration says. So that address has to be the one we want.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..text import plural
from . import packages
from .lab_paths import LabDir
from .lab_settings import LabError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Control:
    """The address that daemons listen on, and the words before a command that is to."""

    address: str
    enter: tuple[str, ...] = ()


def control_here(files: LabDir) -> Control:
    """127.0.0.1: as the host's name resolves to it, or as root can make it in a mount namespace.

    Raises LabError where neither holds.
    """
    if address_of_host() == LOOPBACK:
        return Control(LOOPBACK)
    reason = why_not_here()
    if reason:
        raise LabError(reason)
    files.hosts.write_text(_hosts_with_loopback(), encoding="utf-8")
    return Control(LOOPBACK, with_hosts(files))


def why_not_here() -> str | None:
    """Why the daemons cannot listen on 127.0.0.1; None where they can.

    Any other address does not do, not even Debian's 127.0.1.1: nodes call srun back at
    127.0.0.1, and an srun in a job would not listen there.
    """
    address = address_of_host()
    if address == LOOPBACK or (os.geteuid() == 0 and _can_mount()):
        return None
    name = os.uname().nodename
    return (
        f"this host's name, {name}, resolves to {address or 'nothing'}; expected {LOOPBACK}, where "
        "the lab's daemons must listen; run it as root, which can map the name for the daemons "
        f"only, or put `{LOOPBACK} {name}` first in /etc/hosts"
    )


def address_of_host() -> str | None:
    """What the host's own name resolves to."""
    try:
        return socket.gethostbyname(os.uname().nodename)
    except OSError:
        return None


def _hosts_with_loopback() -> str:
    """The host's own /etc/hosts, but for its own name, which is loopback."""
    names = names_of_host()
    kept = []
    for line in Path("/etc/hosts").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.partition("#")[0].split()
        if not set(words[1:]) & set(names.split()):
            kept.append(line)
    return "\n".join([f"{LOOPBACK} {names}", *kept, ""])


def names_of_host() -> str:
    """The host's name, in full and short."""
    name = os.uname().nodename
    return " ".join(dict.fromkeys((name, name.partition(".")[0])))


def with_hosts(files: LabDir) -> tuple[str, ...]:
    """The words before a command that is to see the lab's hosts file as /etc/hosts."""
    script = 'mount --bind "$0" /etc/hosts; exec "$@"'
    # `slave`: what the host mounts later is seen by jobs, what is mounted here stays here.
    unshare = [packages.program("unshare"), "--mount", "--propagation", "slave", "--"]
    return (*unshare, "sh", "-ec", script, str(files.hosts))


def _can_mount() -> bool:
    """Whether root here may mount at all; in many containers it may not."""
    words = ["--mount", "--propagation", "slave", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    trial = subprocess.run([packages.program("unshare"), *words], capture_output=True)
    return trial.returncode == 0


# Free TCP ports that stay free until the daemon they were chosen for has bound them.

# Below the range from which the kernel takes ports for outgoing connections (32768 and up), so
# that no client's connection can sit on a daemon's port.
LOWEST, HIGHEST = 20000, 32000


@contextlib.contextmanager
def reserved(address: str, count: int) -> Iterator[tuple[int, ...]]:
    """Ports of `address` that nobody uses; inside the block nobody else can choose them.

    Each is bound without SO_REUSEADDR, which fails where anybody has it, another reservation
    included. The option set afterwards lets a daemon, which does set it, bind beside us.
    """
    held: list[socket.socket] = []
    try:
        for port in random.sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST):
            if len(held) == count:
                break
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                holder.bind((address, port))
            except OSError:
                holder.close()
                continue
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.append(holder)
        if len(held) < count:
            raise LabError(
                f"only {len(held)} of {plural(count, 'port')} could be reserved on {address} "
                f"between {LOWEST} and {HIGHEST}; end the processes that hold the others (ss -ltnp)"
            )
        yield tuple(holder.getsockname()[1] for holder in held)
    finally:
        for holder in held:
            holder.close()


def listening(address: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=0.5):
            return True
    except OSError:
        return False
