"""The fake rank program, which stages `loss-flat` and `rank-raised` where its spec names them, and
says that it stages `rank-slow`.

--deaf     stages nothing, whatever the spec names
--silent   stages the fault without recording it
--harm     also loses a metric, which is not part of this fault
--leak     stages `loss-flat` where the spec names no fault
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import EventWriter

FAKE = Path(__file__).resolve().parents[2] / "fakes" / "train_fake.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("deaf", "silent", "harm", "leak"):
        parser.add_argument(f"--{flag}", action="store_true")
    args, rest = parser.parse_known_args()
    phase = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
    rank = int(os.environ["RANK"])
    staged = json.loads(phase.spec.read_text()).get("fault", {"name": "", "rank": rank})
    fault = staged["name"]
    if fault == "rank-slow" and rank != staged["rank"]:
        fault = ""
    variable = os.environ.get("CLUSTERSMOKE_FAULT", "")
    rest += ["--say", f"fault {variable!r}"]
    if args.leak:
        fault = "loss-flat"
    if fault and fault != "nothing" and not args.deaf:
        if not args.silent:
            events = EventWriter(phase.rank_events(rank))
            events.write("staged", name=fault)
            events.close()
        rest += {
            "loss-flat": ["--loss", "rises"],
            "rank-raised": ["--fail"],
            "rank-slow": [],
        }[fault]
        rest += ["--rate", "nan"] if args.harm else []
    sys.argv[1:] = rest
    sys.path.insert(0, str(FAKE.parent))
    runpy.run_path(str(FAKE), run_name="__main__")


if __name__ == "__main__":
    main()
