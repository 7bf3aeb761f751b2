"""The table of staged faults at the end of pytest's output: what the tests measured.

A pytest plugin, registered by tests/conftest.py. With workers (pytest -n) the controller prints the
table, from the properties that the reports carry. The page docs/reference/staged-faults.md is made
from the same rows.
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
    """One staged fault, as its test recorded it."""

    name: str
    family: str
    met: bool  # its test passed: exactly what the fault's row says has failed
    red: str
    finding: str
    ranks: str
    hosts: str
    seconds: float | None
    replayed: bool
    named: bool  # the finding has a cause, or quotes the program's own exception
    of: str = "rank"  # what is at fault: rank, node or nobody

    @property
    def placed(self) -> bool:
        """Rank and host are named. A usage error has neither, nor has what is nobody's fault."""
        if self.finding == "usage error" or self.of == "nobody":
            return True
        return bool(self.hosts and (self.ranks or self.of == "node"))


def measured(properties: Mapping[str, Any], met: bool) -> Measured:
    """Read what a test recorded with record_property; from junit.xml all of it is text."""
    values = {key: str(value) for key, value in properties.items()}
    return Measured(
        name=values["fault"],
        family=values["family"],
        met=met,
        red=values.get("red", ""),
        finding=values.get("finding", ""),
        ranks=values.get("ranks", "").strip("[]"),
        hosts=values.get("hosts", "").strip("[]").replace("'", ""),
        seconds=float(values["seconds"]) if "seconds" in values else None,
        replayed=values.get("replayed") == "True",
        named=values.get("named") == "True",
        of=values.get("of", "rank"),
    )


def from_junit(path: Path) -> list[Measured]:
    """The rows of a junit.xml."""
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        values = {str(item.get("name")): item.get("value") for item in case.iter("property")}
        if "fault" in values:
            met = not {child.tag for child in case} & {"failure", "error"}
            rows.append(measured(values, met))
    return rows


def by_family(rows: Iterable[Measured]) -> list[tuple[str, ...]]:
    """The lines of the table: one for each family, then one for all."""
    families: dict[str, list[Measured]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    lines = [_line(family, families[family]) for family in sorted(families)]
    return [*lines, _line("all", [row for members in families.values() for row in members])]


def _line(family: str, rows: Sequence[Measured]) -> tuple[str, ...]:
    seconds = [row.seconds for row in rows if row.seconds is not None]
    figures = f"{len(seconds)}, {median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"
    counts = (
        len(rows),
        sum(row.met for row in rows),
        sum(row.met and row.named for row in rows),
        sum(row.met and row.placed for row in rows),
    )
    return (family, *map(str, counts), figures, str(sum(row.replayed for row in rows)))


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
    """Print the table if faults were staged."""
    rows = [
        measured(values, report.outcome == "passed")
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        and "fault" in (values := dict(getattr(report, "user_properties", ())))
    ]
    if rows:
        terminalreporter.section("staged faults")
        for line in columns(HEAD, by_family(rows)):
            terminalreporter.write_line(line)
