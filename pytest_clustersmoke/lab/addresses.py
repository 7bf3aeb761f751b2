"""Chooses the address and the ports that the daemons listen on.

A daemon that must not listen on every address binds to the one that the host's own name resolves
to, whatever else its configuration says. So the name must resolve to the address we want.
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
    """The address that daemons listen on, and the command prefix that lets them do so."""

    address: str
    prefix: tuple[str, ...] = ()


def choose_control_address(files: LabDir) -> Control:
    """Use 127.0.0.1, if the host's name resolves to it or root can map it in a mount namespace.

    Raises LabError if neither is possible.
    """
    if resolve_own_name() == LOOPBACK:
        return Control(LOOPBACK)
    reason = find_address_obstacle()
    if reason:
        raise LabError(reason)
    files.hosts.write_text(_render_hosts(), encoding="utf-8")
    return Control(LOOPBACK, own_hosts_prefix(files))


def find_address_obstacle() -> str | None:
    """Why the daemons cannot listen on 127.0.0.1; None if they can.

    No other address works, not even Debian's 127.0.1.1: nodes call srun back at 127.0.0.1, and
    an srun inside a job would not listen there.
    """
    address = resolve_own_name()
    if address == LOOPBACK or (os.geteuid() == 0 and _can_mount()):
        return None
    name = os.uname().nodename
    return (
        f"this host's name, {name}, resolves to {address or 'nothing'}; expected {LOOPBACK}, where "
        "the lab's daemons must listen; run it as root, which can map the name for the daemons "
        f"only, or put `{LOOPBACK} {name}` first in /etc/hosts"
    )


def resolve_own_name() -> str | None:
    """The address that the host's own name resolves to; None if it resolves to none."""
    try:
        return socket.gethostbyname(os.uname().nodename)
    except OSError:
        return None


def _render_hosts() -> str:
    """The host's /etc/hosts with its own name mapped to loopback."""
    names = list_own_names()
    kept = []
    for line in Path("/etc/hosts").read_text(encoding="utf-8", errors="replace").splitlines():
        entry = line.partition("#")[0].split()
        if not set(entry[1:]) & set(names.split()):
            kept.append(line)
    return "\n".join([f"{LOOPBACK} {names}", *kept, ""])


def list_own_names() -> str:
    """The host's full and short name, separated by a space."""
    name = os.uname().nodename
    return " ".join(dict.fromkeys((name, name.partition(".")[0])))


def own_hosts_prefix(files: LabDir) -> tuple[str, ...]:
    """The command prefix under which a command sees the lab's hosts file as /etc/hosts."""
    script = 'mount --bind "$0" /etc/hosts; exec "$@"'
    # `slave`: jobs see what the host mounts later; the host does not see this mount.
    unshare = [packages.program_path("unshare"), "--mount", "--propagation", "slave", "--"]
    return (*unshare, "sh", "-ec", script, str(files.hosts))


def _can_mount() -> bool:
    """Whether root may mount on this machine; in many containers it may not."""
    command = ["--mount", "--propagation", "slave", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    trial = subprocess.run([packages.program_path("unshare"), *command], capture_output=True)
    return trial.returncode == 0


# Free TCP ports, reserved until the daemons have bound them.

# Below the kernel's range for outgoing connections (32768 and up), so that no client connection can
# occupy a daemon's port.
LOWEST, HIGHEST = 20000, 32000


@contextlib.contextmanager
def reserve_ports(address: str, count: int) -> Iterator[tuple[int, ...]]:
    """Free ports of `address`; inside the block no other lab can choose them.

    Each is bound without SO_REUSEADDR, which fails if any other process holds it, including another
    reservation. Setting the option afterwards lets a daemon, which sets it too, bind.
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


def is_listening(address: str, port: int) -> bool:
    """Whether a process accepts connections on this port."""
    try:
        with socket.create_connection((address, port), timeout=0.5):
            return True
    except OSError:
        return False
