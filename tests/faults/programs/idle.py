"""A rank without torch, which starts quickly: it writes a rank's events and trains nothing.

--seconds S    how long it trains     --die-rank R    the rank that kills itself in training
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import PhaseDir, job_name, read_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter

MARK_EVERY_S = 0.2
_kept: list[IO[str]] = []  # open as long as the process lives


def numbers() -> dict[str, int]:
    """The variables of torchrun and of the launcher, under their names in a rank's `start`."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    values = {name.lower(): int(os.environ[name]) for name in names}
    return values | {"node_rank": int(os.environ["CLUSTERSMOKE_NODE_RANK"])}


def begin() -> EventWriter:
    """Write the first event, for the watch, and prepare for dumps, as every rank does."""
    place = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
    ids = numbers()
    rank = ids["rank"]
    # What `Rank` writes when the launcher asks for dumps, or when torchrun ends it first: stacks,
    # but no collectives.
    stacks = place.rank_stack(rank).open("w")
    _kept.append(stacks)
    faulthandler.register(signal.SIGUSR2, file=stacks)
    faulthandler.register(signal.SIGTERM, file=stacks, chain=True)
    place.rank_flight_recorder(rank).write_text('{"entries": []}')
    events = EventWriter(place.rank_events(rank))
    events.write(
        "start",
        schema=SCHEMA,
        job=job_name(read_json(place.spec) or {}),
        nonce=os.environ["CLUSTERSMOKE_NONCE"],
        **ids,
        pid=os.getpid(),
        pid_started=start_s(os.getpid()),
        host=socket.gethostname(),
        node=os.environ["CLUSTERSMOKE_NODE_NAME"],
        device="cpu",
        python=sys.version.split()[0],
    )
    return events


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--die-rank", type=int)
    args = parser.parse_args()
    events, rank = begin(), int(os.environ["RANK"])
    events.write("stage", name="train", state="begin")
    ends = time.monotonic() + args.seconds
    step = 0
    while step == 0 or time.monotonic() < ends:
        step += 1
        events.write("step", step=step, steps=0)
        if rank == args.die_rank and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(min(MARK_EVERY_S, args.seconds))
    events.write("stage", name="train", state="end", seconds=args.seconds)
    events.write("done", seconds=args.seconds)


if __name__ == "__main__":
    main()
