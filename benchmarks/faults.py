"""Stage every fault of tests/faults, and write docs/reference/staged-faults.md from the measures.

python -m benchmarks.faults                    about 20 minutes on two cores
python -m benchmarks.faults junit.xml ...      from reports of these tests; the rows of faults that
                                               they did not stage stay

A report must have been written with `--junitxml=junit.xml -o junit_family=xunit1`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.measures import HEAD, Measured, by_family, from_junit, markdown
from tests.faults.table import FAULTS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "reference" / "staged-faults.md"
UNMET = "**not as its row says**"
INTRODUCTION = """\
# Staged faults

Each fault below is staged in a real job, on virtual nodes of one machine or on a real Slurm. A
test compares the result with the fault's row in `tests/faults/table/`: the criteria that fail and
those that stay green, the finding, its cause, rank and host, and the time it took. Hardware faults
cannot be staged without the hardware, so they are replayed: a rank of a real job prints the
recorded output of such a fault and ends in the same way. Slurm's report of an out-of-memory kill
is also replayed, in addition to a real kill if the kernel can limit memory.

`make faults` (`python -m benchmarks.faults`) writes this page; the tests also print the first
table. Seconds are counted from just before the fault, or from Slurm's own record of it, to the
finding on the controller. The death of a rank must be found within 10 s, a hang within 15 s after
the limit of its stage (4 s here, unless the row says otherwise), and the failure of a node within
10 s after Slurm knows of it. Stale evidence is counted from the end of the ranks, of which no
event counts. Rows without seconds are those of criteria, which are judged after the phase has
ended, and those of jobs that never ran.

A cause is named if the finding has one. No signature matches an exception of the program itself
(`raises_...`): its finding gives the exception and says that the cause is unknown.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("junit", nargs="*", type=Path)
    args = parser.parse_args()
    status = 0
    if args.junit:
        rows = read(args.junit, earlier=read_document())
    else:
        with tempfile.TemporaryDirectory() as folder:
            junit = Path(folder) / "junit.xml"
            command = [sys.executable, "-m", "pytest", "tests/faults", f"--junitxml={junit}"]
            command += ["-o", "junit_family=xunit1"]  # the family with properties of tests
            status = subprocess.run(command, cwd=ROOT).returncode
            rows = read([junit])
    if not rows:
        sys.exit("no fault was staged: nothing is written")
    DOCUMENT.write_text(document(rows))
    print(f"{len(rows)} faults in {DOCUMENT}")
    return status


def read(paths: Sequence[Path], earlier: Iterable[Measured] = ()) -> list[Measured]:
    """The rows of these reports and, for the other faults, the earlier ones; for a fault in several
    reports, the last row."""
    measured = (row for path in paths for row in from_junit(path))
    rows = {row.name: row for row in (*earlier, *measured)}
    return sorted(rows.values(), key=lambda row: (row.family, row.name))


def read_document() -> list[Measured]:
    """The rows of docs/reference/staged-faults.md, without those of faults that are gone. Each
    fault in it has a cause."""
    _, table = DOCUMENT.read_text().replace("\\", "").split("## Every fault\n")
    faults = {fault.name: fault for fault in FAULTS}
    rows = []
    for line in table.splitlines()[2:]:
        fault, family, red, finding, *place, seconds = line.strip("| ").split(" | ")
        _, name, replayed = fault.split("`")
        if name in faults:
            ranks, hosts = ("" if cell == "-" else cell for cell in place)
            rows.append(
                Measured(
                    name=name,
                    family=family,
                    met=red != UNMET,
                    red=red,
                    finding=finding,
                    ranks=ranks,
                    hosts=hosts,
                    seconds=None if seconds == "-" else float(seconds),
                    replayed=bool(replayed),
                    named=True,
                    of=faults[name].of,
                )
            )
    return rows


def document(rows: Sequence[Measured]) -> str:
    """The text of docs/reference/staged-faults.md."""
    head = ("fault", "family", "red", "finding and signature", "rank", "host", "seconds")
    lines = [
        (
            f"`{row.name}`{' (replayed)' if row.replayed else ''}",
            row.family,
            (row.red if row.met else UNMET).replace("_", "\\_"),
            row.finding.replace("_", "\\_"),
            row.ranks or "-",
            row.hosts or "-",
            "-" if row.seconds is None else f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    parts = (
        INTRODUCTION,
        "## Measures\n" + markdown(HEAD, by_family(rows)),
        "## Every fault\n" + markdown(head, lines),
    )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
