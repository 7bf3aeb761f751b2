"""What a run of the ladder takes on the lab, compared with the same lines of torchrun by raw sbatch
under the same cap on jobs: lanes of jobs, each of which waits for the one before it.

    python -m benchmarks.ladder_cost                                   five pairs, in turns
    python -m benchmarks.ladder_cost --pairs 1 --phases mlp_1gpu ddp_2gpu
    python -m benchmarks.ladder_cost --pairs 0 --starts 5              the starts of jobs alone

The start of a job lasts from its batch script's first line to the first line of its last rank. It
may take 1.0 s more than with torchrun alone on one node, and 1.3 s on four.

Programs, arguments, proofs and options of sbatch are those of the plugin's own run, which is read
before the first pair. Phases that start a second time (`resume`) are left out: torchrun alone does
not do that. The exit status is 1 if the median ratio misses the bar of 1.04.
"""

from __future__ import annotations

import argparse
import json
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
from pytest_clustersmoke.text import plural

BAR = 1.04
START_BARS_S = {1: 1.0, 4: 1.3}  # by nodes
CAP = 2  # `limits.max_jobs` of the profile `lab`
LOOK_S = 0.25
FIRST_PORT, PORTS = 20000, 12000  # below those of outgoing connections
# What names the job, or belongs to the plugin's own files.
OWN_OPTIONS = ("comment", "error", "output", "job-name", "array", "dependency", "open-mode")
BEGUN = "date +%s.%N > {folder}/begun"
FIRST_LINE = """
import os, time
now = time.time()
with open("{folder}/first." + os.environ["RANK"], "w") as first:
    first.write(str(now))
"""
PHASE = """
import pytest

@pytest.mark.phase("start", script="{folder}/program.py", nodes={nodes})
class TestStart:
    def test_all_done(self, phase):
        assert phase.ranks_done == {nodes}
"""


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


def measure_start(nodes: int) -> tuple[float, float]:
    """The start of a job through the plugin, and that of the same torchrun by raw sbatch."""
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as place:
        folder = Path(place)
        profile = {
            "backend": "slurm",
            "shared_dir": f"{folder}/shared",
            "hardware": {"gpu": "none", "device": "cpu", "gpus_per_node": 1},
            "slurm": {"partition": "main", "cpus_per_task": 1, "time": 10},
            "setup": [BEGUN.format(folder=folder)],
            "peaks": "never",
            "phases": {"start": None},
        }
        (folder / "cluster.yaml").write_text(json.dumps({"clusters": {"bench": profile}}))
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "program.py").write_text(FIRST_LINE.format(folder=folder))
        (folder / "test_start.py").write_text(PHASE.format(folder=folder, nodes=nodes))
        # The program does not report, so that the phase fails once it has started.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run([*command, "--cluster", "bench"], cwd=folder, capture_output=True)
        plugin_s = read_start(folder, nodes)
        (job,) = read_jobs(folder)
        head, _, step = job.script.rstrip().rpartition("\n")
        begun = BEGUN.format(folder=folder)
        run_raw(folder, [RawJob(job.name, f"{head}\n{begun}\n{step}\n")])
        return plugin_s, read_start(folder, nodes)


def read_start(folder: Path, nodes: int) -> float:
    """How long the job took that ran last, from its script's first line; its marks are deleted."""
    paths = [folder / "begun", *(folder / f"first.{rank}" for rank in range(nodes))]
    begun, *firsts = (float(path.read_text()) for path in paths)
    for path in paths:
        path.unlink()
    return max(firsts) - begun


def show_starts(trials: int) -> bool:
    """Print the starts of jobs on one node and on four; return whether they meet their bars."""
    met = True
    for nodes, bar in START_BARS_S.items() if trials else ():
        more = []
        for _ in range(trials):
            plugin_s, raw_s = measure_start(nodes)
            more.append(plugin_s - raw_s)
            words = f"start on {plural(nodes, 'node')}: {plugin_s:.2f} s, torchrun {raw_s:.2f} s"
            print(words, flush=True)
        print(f"median {median(more):.2f} s more, worst {max(more):.2f}; bar {bar:g}", flush=True)
        met &= median(more) <= bar
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="of a job on one node, and on four")
    parser.add_argument("--phases", nargs="*", default=[], help="all by default")
    args = parser.parse_args()
    with prepared("lab") as reason, tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        if reason:
            print(f"left out: {reason}")
            return 0
        print(describe_machine(), flush=True)
        met = show_starts(args.starts)
        if not args.pairs:
            return 0 if met else 1
        run_plugin(Path(folder), args.phases)
        jobs = read_jobs(Path(folder))
        phases = [job.name for job in jobs]
        print(f"phases: {', '.join(phases)}\n")
        print("| pair | first | pytest, s | sbatch, s | ratio |\n|---|---|---|---|---|", flush=True)
        ratios = [measure_pair(number, phases, jobs) for number in range(args.pairs)]
    print(f"\nmedian ratio {median(ratios):.3f}, bar {BAR}")
    return 0 if met and median(ratios) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
