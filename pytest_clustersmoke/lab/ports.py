"""Free TCP ports that stay free until the daemon they were chosen for has bound them."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from .model import LabError

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
                f"no {count} free ports on {address} between {LOWEST} and {HIGHEST}; "
                "end what holds them (ss -ltnp)"
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
