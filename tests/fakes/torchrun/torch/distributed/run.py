"""A fake torchrun: starts one node's ranks with the environment, logs and status of the real one.

Like the real agent it starts each rank in a session of its own, and ends all ranks when one fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true")
    for name, default in (("nnodes", 1), ("node-rank", 0), ("nproc-per-node", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--log-dir", type=Path, required=True)
    for name in ("local-addr", "master-addr", "master-port", "max-restarts", "monitor-interval"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--redirects")
    parser.add_argument("script")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    return parser.parse_args()


def start(given: argparse.Namespace, local_rank: int) -> subprocess.Popen[bytes]:
    logs = given.log_dir / "fake" / "attempt_0" / str(local_rank)
    logs.mkdir(parents=True)
    per_node = given.nproc_per_node
    numbers = {
        "RANK": given.node_rank * per_node + local_rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": given.node_rank,
        "WORLD_SIZE": given.nnodes * per_node,
        "LOCAL_WORLD_SIZE": per_node,
    }
    with (logs / "stdout.log").open("wb") as out, (logs / "stderr.log").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, given.script, *given.argv],
            env={**os.environ, **{name: str(value) for name, value in numbers.items()}},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def main() -> int:
    given = parse_args()
    ranks = [start(given, local_rank) for local_rank in range(given.nproc_per_node)]

    def end(*_: object) -> None:
        for rank in ranks:
            rank.kill()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    while True:
        codes = [rank.poll() for rank in ranks]
        if any(codes):
            end()
        if None not in codes:
            return 0
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
