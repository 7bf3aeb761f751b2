"""The overhead of a phase: the wall time from its submission until its result is known, less the
scheduler's queue wait and torchrun's wall time. Median of five runs of mlp_1gpu, one at a time.

    python benchmarks/overhead.py            on local, and on a lab that it starts and ends
    python benchmarks/overhead.py --runs 9

The limits are 3 s on local and 5 s on the lab, on an idle machine.
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
    """Run the phase once; return its overhead in seconds, without and with the queue wait.

    Slurm reports times in whole seconds, so the first may be wrong by one. The second is exact,
    unless the first is 0: then it may be too large.
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
def prepared(cluster: str) -> Iterator[str]:
    """Start the lab if the cluster needs it; yield the reason if it is not available, or ""."""
    reason = lab.find_obstacle() if cluster == "lab" else None
    if cluster != "lab" or reason:
        yield reason or ""
        return
    running = lab.start_lab(lab.LabSettings(name=f"bench-{os.getpid()}"))
    os.environ["SLURM_CONF"] = str(running.slurm_conf)
    try:
        yield ""
    finally:
        lab.stop_lab(running.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("clusters", nargs="*", default=list(BOUNDS_S))
    args = parser.parse_args()
    worst = 0
    for cluster in args.clusters:
        with prepared(cluster) as reason:
            if reason:
                print(f"{cluster}: left out: {reason}", flush=True)
                continue
            runs = [measure(cluster) for _ in range(args.runs)]
        bound = BOUNDS_S[cluster]
        for index, kind in enumerate(("overhead", "with the queue wait")):
            values = [run[index] for run in runs]
            listed = " ".join(f"{value:.2f}" for value in values)
            print(f"{cluster}: {kind}: median {median(values):.2f} s of {listed}", flush=True)
        worst |= median(overhead for overhead, _ in runs) >= bound
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
