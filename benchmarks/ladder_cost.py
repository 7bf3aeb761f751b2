"""What a run of the ladder takes on the lab, compared with the same lines of torchrun by raw sbatch
under the same cap on jobs: lanes of jobs, each of which waits for the one before it.

    python -m benchmarks.ladder_cost                                   five pairs, in turns
    python -m benchmarks.ladder_cost --pairs 1 --phases mlp_1gpu ddp_2gpu

Programs, arguments, proofs and options of sbatch are those of the plugin's own run, which is read
before the first pair. Phases that start a second time (`resume`) are left out: torchrun alone does
not do that. The exit status is 1 if the median ratio misses the bar of 1.04.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.overhead import ROOT, prepared
from benchmarks.scheduler_calls import describe_machine
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json

BAR = 1.04
CAP = 2  # `limits.max_jobs` of the profile `lab`
LOOK_S = 0.25
FIRST_PORT, PORTS = 20000, 12000  # below those of outgoing connections
# What names the job, or belongs to the plugin's own files.
OWN_OPTIONS = ("comment", "error", "output", "job-name", "array", "dependency", "open-mode")


@dataclass(frozen=True)
class RawJob:
    """A phase as a batch script of torchrun alone."""

    name: str
    script: str


def run_plugin(folder: Path, phases: Sequence[str]) -> float:
    """Run these phases, all if there is none; return the wall time of the whole command."""
    environ = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(folder / "shared")}
    command = [sys.executable, "-m", "pytest", "smoke_tests", "-q", "-p", "no:cacheprovider"]
    command += ["--cluster", "lab", f"--cluster-report-dir={folder}/reports"]
    if phases:
        command += ["-k", " or ".join(phases)]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    wall_s = time.monotonic() - begun
    if done.returncode:
        sys.exit(f"the ladder ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return wall_s


def read_jobs(folder: Path) -> list[RawJob]:
    """The jobs of a run that the plugin made, in its order."""
    (about,) = folder.glob("shared/*/run.json")
    run = RunDir(about.parent)
    jobs = []
    for name in (read_json(run.run) or {})["phases_chosen"]:
        spec = read_json(run.phase(name).spec) or {}
        if spec.get("resume"):
            print(f"left out: {name}, which starts a second time", flush=True)
        else:
            jobs.append(RawJob(name, make_script(spec, run.phase(name).batch_script.read_text())))
    return jobs


def make_script(spec: dict[str, Any], script: str) -> str:
    """A batch script of the same options, whose nodes run torchrun."""
    options = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    kept = [
        line
        for line in options
        if not line.startswith(tuple(f"#SBATCH --{o}" for o in OWN_OPTIONS))
    ]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in spec["env_set"].items()]
    nodes, meeting = int(spec["nodes"]), "--standalone"
    if nodes > 1:
        port = FIRST_PORT + zlib.crc32(spec["phase"].encode()) % PORTS
        meeting = f'--nnodes {nodes} --node-rank "$SLURM_NODEID" --master-addr 127.0.0.1'
        meeting += f" --master-port {port}"
    torchrun = (
        f"{shlex.quote(sys.executable)} -m torch.distributed.run {meeting} "
        f"--nproc-per-node {spec['ranks_per_node']} --max-restarts 0 "
        f"{shlex.join([spec['script'], *spec['argv']])}"
    )
    lines = ["#!/bin/bash", *kept, *exports, "export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo"]
    step = f"srun --export=ALL --kill-on-bad-exit=1 bash -c {shlex.quote(torchrun)}"
    return "\n".join([*lines, step]) + "\n"


def run_raw(folder: Path, jobs: Sequence[RawJob]) -> float:
    """Submit all jobs in lanes, and wait for the last one; each of them must succeed."""
    lanes = [""] * CAP
    begun = time.monotonic()
    for number, job in enumerate(jobs):
        path = folder / f"{job.name}.sh"
        path.write_text(job.script + f"touch {shlex.quote(str(folder / job.name))}.done\n")
        words = ["sbatch", "--parsable", f"--output={folder}/{job.name}.log", "--open-mode=append"]
        if before := lanes[number % CAP]:
            words.append(f"--dependency=afterany:{before}")
        lanes[number % CAP] = ask(folder, *words, str(path)).strip()
    while ask(folder, "squeue", "--me", "-h", "-t", "PENDING,RUNNING", "-o", "%i").strip():
        time.sleep(LOOK_S)
    wall_s = time.monotonic() - begun
    for job in jobs:
        log = folder / f"{job.name}.log"
        if not (folder / f"{job.name}.done").exists():
            sys.exit(f"{job.name} failed under raw sbatch:\n{log.read_text()[-3000:]}")
    return wall_s


def ask(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def measure_pair(number: int, phases: Sequence[str], jobs: Sequence[RawJob]) -> float:
    """Measure both, the one first that was second before; return the ratio."""
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as place:
        plugin, raw = Path(place, "plugin"), Path(place, "raw")
        plugin.mkdir()
        raw.mkdir()
        if number % 2:
            raw_s, plugin_s = run_raw(raw, jobs), run_plugin(plugin, phases)
        else:
            plugin_s, raw_s = run_plugin(plugin, phases), run_raw(raw, jobs)
    first = "sbatch" if number % 2 else "pytest"
    print(f"| {number + 1} | {first} | {plugin_s:.1f} | {raw_s:.1f} | {plugin_s / raw_s:.3f} |")
    return plugin_s / raw_s


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--phases", nargs="*", default=[], help="all by default")
    args = parser.parse_args()
    with prepared("lab") as reason, tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        if reason:
            print(f"left out: {reason}")
            return 0
        print(describe_machine(), flush=True)
        run_plugin(Path(folder), args.phases)
        jobs = read_jobs(Path(folder))
        phases = [job.name for job in jobs]
        print(f"phases: {', '.join(phases)}\n")
        print("| pair | first | pytest, s | sbatch, s | ratio |\n|---|---|---|---|---|", flush=True)
        ratios = [measure_pair(number, phases, jobs) for number in range(args.pairs)]
    print(f"\nmedian ratio {median(ratios):.3f}, bar {BAR}")
    return 0 if median(ratios) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
