"""Stage every fault of tests/faults, and write docs/reference/staged-faults.md from the measures.

python -m benchmarks.faults                    about 20 minutes on two cores
python -m benchmarks.faults junit.xml ...      from reports of earlier runs of these tests
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.measures import HEAD, Measured, by_family, from_junit, markdown

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "reference" / "staged-faults.md"
INTRODUCTION = """\
# Staged faults

Each fault below is staged in a real job, on virtual nodes of one machine or on a real Slurm. A
test compares the result with its row in `tests/faults/table/`: the criteria that fail and those
that stay green, the finding, its cause, rank and host, and how long it took. Faults of hardware
cannot be staged without it and are replayed: a rank of a real job writes the recorded words of
one and ends as that one did. Slurm's report of an out-of-memory kill is replayed, too, beside a
real one where the kernel can limit memory.

`make faults` (`python -m benchmarks.faults`) writes this page; the tests also print the first
table. Seconds run from just before the fault, or from Slurm's own record of it, to the finding on
the controller. A rank's death must be found within 10 s, a hang within its stage's limit (4 s here,
unless the row says otherwise) and 15 s, a node's failure within 10 s of Slurm knowing it. Rows
without seconds are those of criteria, judged when the phase has ended, and those that never ran.

A cause is named where the finding has one. An exception of the program's own (`raises_...`) is
known to no signature: its finding gives the exception, and says that its cause is unknown.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("junit", nargs="*", type=Path)
    given = parser.parse_args()
    status, rows = 0, read(given.junit)
    if not given.junit:
        with tempfile.TemporaryDirectory() as folder:
            junit = Path(folder) / "junit.xml"
            command = [sys.executable, "-m", "pytest", "tests/faults", f"--junitxml={junit}"]
            command += ["-o", "junit_family=xunit1"]  # the one that knows properties of a test
            status = subprocess.run(command, cwd=ROOT).returncode
            rows = read([junit])
    if not rows:
        sys.exit("no fault was staged: nothing is written")
    DOCUMENT.write_text(document(rows))
    print(f"{len(rows)} faults in {DOCUMENT}")
    return status


def read(paths: Sequence[Path]) -> list[Measured]:
    """The rows of these reports; of a fault in several, the last."""
    found = {row.name: row for path in paths for row in from_junit(path)}
    return sorted(found.values(), key=lambda row: (row.family, row.name))


def document(rows: Sequence[Measured]) -> str:
    """docs/reference/staged-faults.md."""
    head = ("fault", "family", "red", "finding and signature", "rank", "host", "seconds")
    lines = [
        (
            f"`{row.name}`{' (replayed)' if row.replayed else ''}",
            row.family,
            (row.red if row.met else "**not as its row says**").replace("_", "\\_"),
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
