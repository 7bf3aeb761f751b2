"""train_mlp.py where rank 0 writes its checkpoint to a file system of 64 KiB.

The file system is a tmpfs in a mount namespace of this process, and ends with it. Where no
namespace can be made, the checkpoint's file is a link to /dev/full, to which every write fails with
the same error. The fact `disk` says which was used.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

SIZE = "64k"
INSIDE = "CLUSTERSMOKE_TEST_SMALL_DISK"
MOUNT = f'mount -t tmpfs -o size={SIZE} none "$0" && exec "$@"'
UNSHARE = ["unshare", "--mount", "--map-root-user"]


def restart_on_small_disk(output: str) -> None:
    """Restart this program with a small file system at `output`, if one can be mounted."""
    if INSIDE in os.environ:
        return
    try:
        can = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]).returncode == 0
    except OSError:
        can = False
    os.environ[INSIDE] = "tmpfs" if can else "/dev/full"
    if can:
        again = [sys.executable, *sys.argv]
        os.execvp(UNSHARE[0], [*UNSHARE, "sh", "-c", MOUNT, output, *again])


def main() -> None:
    from pytest_clustersmoke.rank import Rank

    train_mlp: Any = importlib.import_module("train_mlp")
    staging: Any = importlib.import_module("staging")
    whole_save = Rank.save_checkpoint

    def save_checkpoint(rank: Rank, save: Callable[[], object]) -> None:
        if rank.is_main:
            rank.fact(disk=os.environ[INSIDE])
            if os.environ[INSIDE] == "/dev/full":
                (rank.output_dir / "ddp.pt").symlink_to("/dev/full")
            staging.staged()
        whole_save(rank, save)

    Rank.save_checkpoint = save_checkpoint  # type: ignore[method-assign, assignment]
    train_mlp.main()


if __name__ == "__main__":
    if os.environ["RANK"] == "0":
        restart_on_small_disk(f"{os.environ['CLUSTERSMOKE_PHASE_DIR']}/output")
    main()
