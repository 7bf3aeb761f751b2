"""What the terminal shows: a failed job's findings, and at the end one table and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..environment import Remark, grouped, lines
from ..references import show
from ..verdict import FIT, UNFIT

if TYPE_CHECKING:
    from ..result import PhaseResult

COLUMNS = ("phase", "outcome", "nodes", "queue s", "run s", "steps/s", "rate", "GiB", "transport")
NUMBERS = {"queue s", "run s", "steps/s", "rate", "GiB"}
MAX_WARNINGS = 10


def job_failure(result: PhaseResult) -> str:
    """The text of a failed `::job`: outcome, reason, then each finding with evidence and fix."""
    lines = [f"phase {result.name}: {result.outcome}: {result.job.get('reason', '')}"]
    for finding in result.job.get("findings", []):
        if not finding["primary"]:
            lines.append(f"also {finding['id']}: {finding['cause']}")
            continue
        lines.append("")
        lines.append(f"finding {finding['id']}: {finding['cause']}")
        for one in finding["evidence"]:
            lines.append(f"  {one['file']}:{one['line']}")
            lines += [f"    {text}" for text in str(one["text"]).splitlines()]
        lines.append(f"  next: {finding['fix']}")
    lines.append("")
    lines.append(f"evidence: {result.directory.root}")
    return printable("\n".join(lines))


def write_summary(reporter: Any, record: Mapping[str, Any], report: str) -> None:
    """The table over all phases and the verdict, last. `report` says where the report lies."""
    reporter.section(f"cluster {record['cluster']}, run {record['run_id']}", sep="-")
    rows = [[*COLUMNS, "reference"]] + [_row(phase) for phase in record["phases"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for index, row in enumerate(rows):
        cells = [
            cell.rjust(width) if COLUMNS[i] in NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        failed = index > 0 and row[1] != "passed"
        reporter.write_line(printable("  ".join([*cells, row[-1]]).rstrip()), red=failed)
    for line in record["absent_phases"]:
        reporter.write_line(line)
    for line in _warnings(record["phases"]):
        reporter.write_line(printable(line), yellow=True)
    reporter.write_line(report)
    verdict = record["verdict"]
    colour = {"green": verdict == FIT, "red": verdict == UNFIT, "yellow": True}
    first = next(name for name, wanted in colour.items() if wanted)
    reporter.write_line(record["sentence"], bold=True, **{first: True})


def _warnings(phases: Iterable[Mapping[str, Any]]) -> list[str]:
    """The warnings about the nodes' variables, equal ones once, and how many more there are."""
    by_phase = {
        str(phase["phase"]): [
            Remark(**one) for one in phase.get("remarks", []) if one["severity"] == "warning"
        ]
        for phase in phases
    }
    found = lines(grouped(by_phase))
    more = len(found) - MAX_WARNINGS
    told = [f"... and {more} more in report.json"] if more > 0 else []
    return found[:MAX_WARNINGS] + told


def _row(phase: Mapping[str, Any]) -> list[str]:
    metrics = phase["metrics"]

    def value(name: str, unit: str = "") -> str:
        return f"{show(metrics[name]['value'])}{unit}" if name in metrics else "-"

    rate = value("samples_per_s", " samples/s")
    if "tokens_per_s_per_rank" in metrics:
        rate = value("tokens_per_s_per_rank", " tokens/s")
    if "busbw_gb_per_s" in metrics:
        rate = value("busbw_gb_per_s", " GB/s bus")
    return [
        str(phase["phase"]),
        str(phase["outcome"]),
        str(len(phase["nodes"])),
        _seconds(phase.get("queue_s")),
        _seconds(phase.get("run_s")),
        value("steps_per_s"),
        rate,
        value("peak_memory_gib"),
        str(phase["transport"]),
        _against(metrics),
    ]


def _against(metrics: Mapping[str, Any]) -> str:
    """The comparison with the references: which are missed, else that they are met."""
    compared = {name: one for name, one in metrics.items() if one["met"] is not None}
    if not compared:
        return "no reference"
    missed = [one["text"] for one in compared.values() if not one["met"]]
    return "; ".join(missed) if missed else f"met ({', '.join(compared)})"


def _seconds(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "-"


def printable(text: str) -> str:
    """Logs are hostile text: no control character of theirs reaches the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
