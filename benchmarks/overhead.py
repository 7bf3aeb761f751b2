"""What a phase costs beyond its own work: wall from its submission to its result known, less the
scheduler's queue wait and torchrun's own wall. Median of five runs of mlp_1gpu, one at a time.

    python benchmarks/overhead.py            on local, and on a lab that it starts and ends
    python benchmarks/overhead.py --runs 9

The bounds are 3 s on local and 5 s on the lab, on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from pytest_clustersmoke import lab

ROOT = Path(__file__).resolve().parent.parent
BOUNDS_S = {"local": 3.0, "lab": 5.0}


def measure(cluster: str) -> tuple[float, float]:
    """One run of the phase; its overhead in seconds, without and with the queue wait.

    Slurm tells times in whole seconds, so the first may be wrong by one; the second is exact, or,
    where the first is 0, no less than it was.
    """
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        environ = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": folder}
        command = [sys.executable, "-m", "pytest", "smoke_tests/test_mlp.py", "-q"]
        command += ["--cluster", cluster, "--cluster-report-dir", f"{folder}/reports"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"the run on {cluster} ended with status {done.returncode}:\n{done.stdout}")
        report = json.loads(Path(folder, "reports/latest/report.json").read_text())
        phase = report["phases"][0]
        return phase["overhead_s"], phase["overhead_s"] + phase["queue_s"]


@contextmanager
def ready(cluster: str) -> Iterator[str]:
    """Have the cluster there; gives the reason where it cannot be had, else nothing."""
    reason = lab.find_obstacle() if cluster == "lab" else None
    if cluster != "lab" or reason:
        yield reason or ""
        return
    running = lab.up(lab.LabSettings(name=f"bench-{os.getpid()}"))
    os.environ["SLURM_CONF"] = str(running.slurm_conf)
    try:
        yield ""
    finally:
        lab.down(running.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("clusters", nargs="*", default=list(BOUNDS_S))
    args = parser.parse_args()
    worst = 0
    for cluster in args.clusters:
        with ready(cluster) as reason:
            if reason:
                print(f"{cluster}: left out: {reason}", flush=True)
                continue
            found = [measure(cluster) for _ in range(args.runs)]
        bound = BOUNDS_S[cluster]
        for index, what in enumerate(("overhead", "with the queue wait")):
            values = [one[index] for one in found]
            listed = " ".join(f"{one:.2f}" for one in values)
            print(f"{cluster}: {what}: median {median(values):.2f} s of {listed}", flush=True)
        worst |= median(one for one, _ in found) >= bound
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
