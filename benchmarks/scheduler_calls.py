"""How long many short jobs take, and how often the scheduler is asked meanwhile: through this
plugin, by one sbatch for each job, through submitit's own array and through ReFrame.

    python -m benchmarks.scheduler_calls                  on a lab that it starts and ends
    python -m benchmarks.scheduler_calls --jobs 20x5      20 jobs of 5 s only

Each job sleeps, and at most 20 run at a time. Scripts on PATH count the calls of Slurm's commands,
but not those made inside a job. The plugin's jobs are phases with `launcher: none`, whose program
reports as a rank does. All of them ask for the same, so they are a job array.
ReFrame is installed with pip into a temporary environment, and left out where that is impossible.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.overhead import ROOT, prepared

CAP = 20
POLL_S = 2.0
PROGRAM = ROOT / "tests" / "faults" / "programs" / "idle.py"
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")
COUNTER = """#!/bin/sh
[ -n "$SLURM_JOB_ID" ] || echo {name} >> {calls}
exec {real} "$@"
"""
REFRAME_CONFIG = f"""
site_configuration = {{
    "systems": [{{"name": "lab", "hostnames": [".*"], "partitions": [{{
        "name": "main", "scheduler": "squeue", "launcher": "local", "environs": ["builtin"],
        "access": ["--partition=main"], "max_jobs": {CAP}}}]}}],
    "environments": [{{"name": "builtin"}}],
}}
"""
REFRAME_TEST = """
import reframe as rfm

@rfm.simple_test
class Sleeps(rfm.RunOnlyRegressionTest):
    number = parameter(range({jobs}))
    valid_systems, valid_prog_environs, sourcesdir = ["*"], ["*"], None
    executable, executable_opts = "sleep", ["{seconds}"]

    @sanity_function
    def ended(self):
        return True
"""


@dataclass(frozen=True)
class Load:
    """So many jobs that sleep for so long, in a folder of their own."""

    jobs: int
    seconds: int
    folder: Path
    environ: Mapping[str, str]

    def run(self, *command: str | Path) -> str:
        """Run a command to its end, which must be a success; return what it prints."""
        words = list(map(str, command))
        done = subprocess.run(
            words, cwd=self.folder, env=self.environ, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{words} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def run_plugin(load: Load) -> None:
    names = [f"sleep{number}" for number in range(load.jobs)]
    profile = {
        "backend": "slurm",
        "shared_dir": str(load.folder / "shared"),
        "hardware": {"gpu": "none", "device": "cpu", "gpus_per_node": 1},
        "slurm": {"partition": "main", "cpus_per_task": 1, "time": 10},
        "limits": {"max_jobs": CAP, "poll_s": POLL_S},
        "phases": dict.fromkeys(names),
    }
    (load.folder / "cluster.yaml").write_text(json.dumps({"clusters": {"bench": profile}}))
    (load.folder / "pytest.ini").write_text("[pytest]\n")
    phase = """
        @pytest.mark.phase("{name}", script="{script}", launcher="none", args={args})
        class Test{title}:
            def test_all_done(self, phase):
                assert phase.ranks_done == 1
        """
    values = {"script": PROGRAM, "args": {"seconds": load.seconds}}
    classes = [
        textwrap.dedent(phase).format(name=name, title=name.title(), **values) for name in names
    ]
    (load.folder / "test_sleep.py").write_text("import pytest\n" + "".join(classes))
    load.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cluster", "bench")


def run_sbatch(load: Load) -> None:
    left, ids = load.jobs, set[str]()
    while left or ids:
        while left and len(ids) < CAP:
            job = ("sbatch", "--parsable", "--output=/dev/null", "--partition=main")
            ids.add(load.run(*job, f"--wrap=sleep {load.seconds}").strip())
            left -= 1
        time.sleep(POLL_S)
        listed = load.run("squeue", "--me", "-h", "-o", "%i")
        ids &= set(listed.split())


def run_submitit(load: Load) -> None:
    program = f"""
        import submitit, time
        executor = submitit.SlurmExecutor("logs")
        executor.update_parameters(array_parallelism={CAP}, partition="main", time=10)
        jobs = executor.map_array(time.sleep, [{load.seconds}] * {load.jobs})
        [job.result() for job in jobs]
        """
    load.run(sys.executable, "-c", textwrap.dedent(program))


def run_reframe(load: Load, reframe: Path) -> None:
    (load.folder / "config.py").write_text(REFRAME_CONFIG)
    test = load.folder / "sleeps.py"
    test.write_text(REFRAME_TEST.format(jobs=load.jobs, seconds=load.seconds))
    load.run(reframe, "-C", "config.py", "-c", test, "--prefix", load.folder / "reframe", "-r")


def install_reframe(folder: Path) -> Path | None:
    """Install ReFrame 4 into an environment of its own; None if that is impossible."""
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", "reframe-hpc>=4,<5"]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"ReFrame is left out: {error}", flush=True)
        return None
    return folder / "bin" / "reframe"


def count_calls(bin: Path, calls: Path) -> dict[str, str]:
    """An environment in which each call of a Slurm command is written to the file `calls`."""
    for name in COMMANDS:
        if real := shutil.which(name):
            (bin / name).write_text(COUNTER.format(name=name, calls=calls, real=real))
            (bin / name).chmod(0o755)
    return {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}


def measure(name: str, run: Callable[[Load], None], jobs: int, seconds: int) -> None:
    """Run these jobs, and print a row of the table."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as place:
        folder = Path(place)
        calls, bin, work = folder / "calls", folder / "bin", folder / "work"
        calls.touch()
        bin.mkdir()
        work.mkdir()
        load = Load(jobs, seconds, work, count_calls(bin, calls))
        begun = time.monotonic()
        run(load)
        wall_s = time.monotonic() - begun
        counted = Counter(calls.read_text().split())
    polls = counted.pop("squeue", 0)
    others = ", ".join(f"{count} {command}" for command, count in counted.most_common())
    cells = (f"{jobs} x {seconds} s", name, f"{wall_s:.1f}", polls, counted.total(), others)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def describe_machine() -> str:
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    slurm = subprocess.run(["sbatch", "--version"], capture_output=True, text=True).stdout.strip()
    versions = [f"{name} {version(name)}" for name in ("pytest-clustersmoke", "submitit")]
    return "; ".join(
        (
            f"{os.cpu_count()} cores of {cpu[0].partition(': ')[2]}",
            f"load {os.getloadavg()[0]:.1f} at the start",
            f"Python {platform.python_version()}, {slurm}, {', '.join(versions)}",
            time.strftime("%Y-%m-%d"),
        )
    )


def parse_load(text: str) -> tuple[int, int]:
    jobs, seconds = map(int, text.split("x"))
    return jobs, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--jobs", nargs="*", type=parse_load, default=[(20, 5), (100, 1)])
    args = parser.parse_args()
    with prepared("lab") as reason, tempfile.TemporaryDirectory() as folder:
        if reason:
            print(f"left out: {reason}")
            return 0
        reframe = install_reframe(Path(folder))
        print(describe_machine())
        if reframe:
            print(subprocess.run([reframe, "--version"], capture_output=True, text=True).stdout)
        print("| jobs | by | wall, s | squeue | other calls | which |\n|---|---|---|---|---|---|")
        for jobs, seconds in args.jobs:
            measure("pytest-clustersmoke", run_plugin, jobs, seconds)
            measure("sbatch for each job", run_sbatch, jobs, seconds)
            measure("submitit's array", run_submitit, jobs, seconds)
            if reframe:
                measure("ReFrame", lambda load: run_reframe(load, reframe), jobs, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
