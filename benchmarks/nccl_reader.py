"""How fast the reader of NCCL's logs is beside `grep -c ' via '` on the same file and one core, and
how much memory it takes. Exit status 1 where a target is missed.

    python benchmarks/nccl_reader.py
    python benchmarks/nccl_reader.py --pairs 15 --mib 400

Speeds are medians over pairs of runs, one of grep and one of `clustersmoke transports --json`,
alternating, so that what else the machine does falls on both. The targets are a quarter of grep's
speed where edges are 5 % of the bytes, and a twentieth on nothing but edges (half of both where a
time stands before each line); 300 MiB on a log of 1 GiB; a job of 512 ranks reported within 10 s,
and read within 10 s and 300 MiB where all pairs are connected: half a million edges.
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
sys.path.insert(0, str(ROOT))  # the generator of logs is that of the tests

from tests.evidence.nccl import large  # noqa: E402

MEMORY_MIB = 300
JOB_S = 10.0
# Name -> share of edges, whether lines have a time, the part of grep's speed that is wanted.
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
from pytest_clustersmoke.evidence.nccl import Reader
reader = Reader()
reader.file(Path(sys.argv[1]))
print(len(reader.log().edges))
"""


Word = str | Path


def apart(write: Callable[..., None], *words: object) -> None:
    """Write a log in a process of its own: the peak memory of what is started from this one counts
    from this one's."""
    with ProcessPoolExecutor(max_workers=1) as pool:
        pool.submit(write, *words).result()


def write_mixed(path: Path, mib: int, share: float, stamped: bool) -> None:
    large.write(path, large.mixed(share, stamped=stamped), mib * 2**20)


def write_job(path: Path, all_pairs: bool) -> None:
    lines = large.all_pairs(64, 8) if all_pairs else large.rings(64, 8)
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)


def run(command: Sequence[Word]) -> tuple[float, float]:
    """Wall seconds and peak MiB of a command whose output is thrown away through a pipe: GNU grep
    stops at the first match where its output is /dev/null."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    while process.stdout.read(2**20):
        pass
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def on_one_core(pairs: int, mib: int, folder: Path) -> bool:
    """Compare with grep; True where every target is met."""
    met, path = True, folder / "speed.log"
    print(f"{mib} MiB each, medians of {pairs} pairs, load {os.getloadavg()[0]:.1f}")
    print(f"{'':40} {'grep':>8} {'command':>8} {'part':>6} {'wanted':>6}")
    for name, (share, stamped, wanted) in FILES.items():
        apart(write_mixed, path, mib, share, stamped)
        found = []
        for _ in range(pairs + 1):
            grep, _ = run(["grep", "-c", " via ", path])
            mine, _ = run([*COMMAND, path])
            found.append((grep, mine, grep / mine))
        found = found[1:]  # the first reads the file into the page cache
        grep, mine, part = (median(column) for column in zip(*found, strict=True))
        met &= part >= wanted
        print(f"{name:40} {grep:6.2f} s {mine:6.2f} s {part:6.3f} {wanted:6.3f}", flush=True)
    return met


def memory(folder: Path, mib: int) -> bool:
    """Peak memory on a log of so many MiB; True where the target is met."""
    path = folder / "memory.log"
    apart(write_mixed, path, mib, 0.05, False)
    seconds, peak = run([*COMMAND, path])
    print(
        f"{mib} MiB: {seconds:.1f} s, peak {peak:.0f} MiB (wanted: below {MEMORY_MIB})", flush=True
    )
    return peak < MEMORY_MIB


def job(folder: Path) -> bool:
    """A job of 512 ranks, in rings and between all pairs; True where the targets are met."""
    met, path = True, folder / "job.log"
    read: list[Word] = [sys.executable, "-c", READ, path]
    print(f"{'512 ranks':40} wanted: below {JOB_S:.0f} s and {MEMORY_MIB} MiB")
    for name, all_pairs in (("rings", False), ("all pairs", True)):
        apart(write_job, path, all_pairs)
        name = f"{name} ({path.stat().st_size / 2**20:.0f} MiB)"
        for what, command in (("read", read), ("reported", [*COMMAND, path])):
            seconds, peak = run(command)
            # Printing half a gigabyte of JSON is no matter of the reader's.
            wanted = not (all_pairs and what == "reported")
            met &= not wanted or (seconds < JOB_S and peak < MEMORY_MIB)
            note = "" if wanted else " (no target)"
            print(f"{f'{name}, {what}':40} {seconds:6.2f} s, peak {peak:.0f} MiB{note}", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=7, help="runs of each, 7 where none is said")
    parser.add_argument("--mib", type=int, default=200, help="size of the logs for speed")
    parser.add_argument("--memory-mib", type=int, default=1024, help="size of the log for memory")
    args = parser.parse_args()
    if shutil.which("grep") is None:
        sys.exit("grep is needed, which is the measure here")
    if hasattr(os, "sched_setaffinity"):  # what is started from here on inherits it
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        met = [
            on_one_core(args.pairs, args.mib, folder),
            memory(folder, args.memory_mib),
            job(folder),
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
