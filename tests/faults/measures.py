"""The table of staged faults: what the tests measured, at the end of pytest's output.

A pytest plugin, registered by tests/conftest.py: with workers (pytest -n) it is the controller that
prints, from the properties that travel with the reports. The page
docs/reference/staged-faults.md is made from the same rows.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HEAD = (
    "family",
    "staged",
    "right criterion",
    "cause named",
    "host, rank named",
    "seconds to the finding: n, median, most",
    "replayed",
)


@dataclass(frozen=True)
class Measured:
    """One staged fault, as its test told."""

    name: str
    family: str
    met: bool  # its test passed: what failed is what the fault's row says
    red: str
    finding: str
    ranks: str
    hosts: str
    seconds: float | None
    replayed: bool
    named: bool  # what was found has a cause; of a program's own exception its words
    of: str = "rank"  # or node, or nobody: what is at fault

    @property
    def placed(self) -> bool:
        """Rank and host are named. A usage error is of neither, nor is what is nobody's fault."""
        if self.finding == "usage error" or self.of == "nobody":
            return True
        return bool(self.hosts and (self.ranks or self.of == "node"))


def measured(properties: Mapping[str, Any], met: bool) -> Measured:
    """What a test told by record_property; from junit.xml all of it is text."""
    told = {key: str(value) for key, value in properties.items()}
    return Measured(
        name=told["fault"],
        family=told["family"],
        met=met,
        red=told.get("red", ""),
        finding=told.get("finding", ""),
        ranks=told.get("ranks", "").strip("[]"),
        hosts=told.get("hosts", "").strip("[]").replace("'", ""),
        seconds=float(told["seconds"]) if "seconds" in told else None,
        replayed=told.get("replayed") == "True",
        named=told.get("named") == "True",
        of=told.get("of", "rank"),
    )


def from_junit(path: Path) -> list[Measured]:
    """The rows of a junit.xml."""
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        told = {str(one.get("name")): one.get("value") for one in case.iter("property")}
        if "fault" in told:
            rows.append(measured(told, not {one.tag for one in case} & {"failure", "error"}))
    return rows


def by_family(rows: Iterable[Measured]) -> list[tuple[str, ...]]:
    """The table's lines: a family each, then all."""
    families: dict[str, list[Measured]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    lines = [_line(family, families[family]) for family in sorted(families)]
    return [*lines, _line("all", [row for found in families.values() for row in found])]


def _line(family: str, rows: Sequence[Measured]) -> tuple[str, ...]:
    seconds = [row.seconds for row in rows if row.seconds is not None]
    took = f"{len(seconds)}, {median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"
    counts = (
        len(rows),
        sum(row.met for row in rows),
        sum(row.met and row.named for row in rows),
        sum(row.met and row.placed for row in rows),
    )
    return (family, *map(str, counts), took, str(sum(row.replayed for row in rows)))


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    shown = [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]
    return "\n".join(shown) + "\n"


def columns(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table for a terminal."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    ]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table where faults were staged."""
    rows = [
        measured(told, report.outcome == "passed")
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        and "fault" in (told := dict(getattr(report, "user_properties", ())))
    ]
    if rows:
        terminalreporter.section("staged faults")
        for line in columns(HEAD, by_family(rows)):
            terminalreporter.write_line(line)
