"""Trains nothing: writes what an earlier run recorded, under the name of this job, and exits 0.

With --word also under the word of the node that started this job.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import PhaseDir, job_name, read_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--word", action="store_true")
    arguments = parser.parse_args()
    steps = arguments.steps
    place = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    events = EventWriter(place.rank_events(rank))
    begun_s = start_s(os.getpid()) - 3600 * arguments.word
    identity = {"pid": os.getpid(), "pid_started": begun_s, "rank": rank}
    identity |= {"nonce": os.environ["CLUSTERSMOKE_NONCE"]} if arguments.word else {}
    name = job_name(read_json(place.spec) or {})
    events.write("start", schema=SCHEMA, job=name, world_size=world_size, **identity)
    events.write("group", backend="gloo", world_size=world_size, timeout_s=60)
    events.write("barrier", seconds=0.01)
    events.write("step", step=steps, steps=steps)
    events.write("reload", equal=True, tensors=8, mismatched=[])
    events.write("done", seconds=1.0)


if __name__ == "__main__":
    main()
