"""The speed of the reader of NCCL's logs, compared with `grep -c ' via '` on the same file and one
core, and its memory. Exit status 1 if a target is missed.

    python benchmarks/nccl_reader.py
    python benchmarks/nccl_reader.py --pairs 15 --mib 400

Speeds are medians over pairs of runs, one of grep and one of `clustersmoke transports --json`,
alternating, so that other load on the machine affects both. The targets:

- a quarter of grep's speed if edges are 5 % of the bytes, and a twentieth if every line is an edge;
  half of that if each line starts with a time
- 300 MiB on a log of 1 GiB
- a job of 512 ranks reported within 10 s
- the same with all pairs connected, half a million edges, read within 10 s and 300 MiB
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the tests' generator of logs

from tests.evidence.nccl import large  # noqa: E402

MEMORY_MIB = 300
JOB_S = 10.0
# Name -> share of edges, whether lines start with a time, the target as a part of grep's speed.
FILES = {
    "5 % edges": (0.05, False, 1 / 4),
    "5 % edges, a time on each line": (0.05, True, 1 / 8),
    "nothing but edges": (1.0, False, 1 / 20),
    "nothing but edges, a time on each line": (1.0, True, 1 / 40),
}
COMMAND: list[str | Path] = [
    sys.executable,
    "-m",
    "pytest_clustersmoke.cli",
    "transports",
    "--json",
]
# The reader alone: what `clustersmoke transports` does before it prints.
READ = """
import sys
from pathlib import Path
from pytest_clustersmoke.evidence.nccl.log_reader import Reader
reader = Reader()
reader.file(Path(sys.argv[1]))
print(len(reader.log().edges))
"""


Word = str | Path


def run_in_process(write: Callable[..., None], *words: object) -> None:
    """Write a log in another process: the peak memory of a child starts at that of its parent."""
    with ProcessPoolExecutor(max_workers=1) as pool:
        pool.submit(write, *words).result()


def write_mixed(path: Path, mib: int, share: float, stamped: bool) -> None:
    large.write(path, large.mixed(share, stamped=stamped), mib * 2**20)


def write_job(path: Path, all_pairs: bool) -> None:
    lines = large.all_pairs(64, 8) if all_pairs else large.rings(64, 8)
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)


def run(command: Sequence[Word]) -> tuple[float, float]:
    """Run a command; return its wall seconds and peak MiB. Its output is discarded through a pipe,
    since GNU grep stops at the first match if its output is /dev/null."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    while process.stdout.read(2**20):
        pass
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def compare_with_grep(pairs: int, mib: int, folder: Path) -> bool:
    """Compare the speed with grep's; True if every target is met."""
    met, path = True, folder / "speed.log"
    print(f"{mib} MiB each, medians of {pairs} pairs, load {os.getloadavg()[0]:.1f}")
    print(f"{'':40} {'grep':>8} {'command':>8} {'part':>6} {'target':>6}")
    for name, (share, stamped, target) in FILES.items():
        run_in_process(write_mixed, path, mib, share, stamped)
        runs = []
        for _ in range(pairs + 1):
            grep, _ = run(["grep", "-c", " via ", path])
            mine, _ = run([*COMMAND, path])
            runs.append((grep, mine, grep / mine))
        runs = runs[1:]  # the first reads the file into the page cache
        grep, mine, part = (median(column) for column in zip(*runs, strict=True))
        met &= part >= target
        print(f"{name:40} {grep:6.2f} s {mine:6.2f} s {part:6.3f} {target:6.3f}", flush=True)
    return met


def measure_memory(folder: Path, mib: int) -> bool:
    """Measure the peak memory on a log of this size; True if the target is met."""
    path = folder / "memory.log"
    run_in_process(write_mixed, path, mib, 0.05, False)
    seconds, peak = run([*COMMAND, path])
    print(
        f"{mib} MiB: {seconds:.1f} s, peak {peak:.0f} MiB (target: below {MEMORY_MIB})", flush=True
    )
    return peak < MEMORY_MIB


def measure_job(folder: Path) -> bool:
    """Measure a job of 512 ranks, in rings and between all pairs; True if the targets are met."""
    met, path = True, folder / "job.log"
    read: list[Word] = [sys.executable, "-c", READ, path]
    print(f"{'512 ranks':40} target: below {JOB_S:.0f} s and {MEMORY_MIB} MiB")
    for name, all_pairs in (("rings", False), ("all pairs", True)):
        run_in_process(write_job, path, all_pairs)
        name = f"{name} ({path.stat().st_size / 2**20:.0f} MiB)"
        for step, command in (("read", read), ("reported", [*COMMAND, path])):
            seconds, peak = run(command)
            # Printing half a gigabyte of JSON does not measure the reader.
            has_target = not (all_pairs and step == "reported")
            met &= not has_target or (seconds < JOB_S and peak < MEMORY_MIB)
            note = "" if has_target else " (no target)"
            print(f"{f'{name}, {step}':40} {seconds:6.2f} s, peak {peak:.0f} MiB{note}", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs (default: 7)")
    parser.add_argument("--mib", type=int, default=200, help="size of the logs for speed")
    parser.add_argument("--memory-mib", type=int, default=1024, help="size of the log for memory")
    args = parser.parse_args()
    if shutil.which("grep") is None:
        sys.exit("no `grep` on PATH, with which the speed is compared")
    if hasattr(os, "sched_setaffinity"):  # children inherit it
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        met = [
            compare_with_grep(args.pairs, args.mib, folder),
            measure_memory(folder, args.memory_mib),
            measure_job(folder),
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
