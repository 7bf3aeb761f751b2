"""What the terminal shows: a failed job's findings, and at the end one table and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import clean
from ..environment import Remark, grouped, lines
from ..known import sentence
from ..references import show
from ..verdict import FIT, NOT_PROVEN, PROVEN, UNFIT
from . import proof

if TYPE_CHECKING:
    from ..result import PhaseResult

COLUMNS = ("phase", "outcome", "nodes", "queue s", "run s", "steps/s", "rate", "GiB", "transport")
NUMBERS = {"queue s", "run s", "steps/s", "rate", "GiB"}
MAX_WARNINGS, MAX_ALSO = 10, 16


def job_failure(result: PhaseResult) -> str:
    """The text of a failed `::job`: outcome, reason, then each finding with evidence and fix."""
    reason = clean.line(str(result.job.get("reason", "")))
    lines = [f"phase {result.name}: {result.outcome}: {reason}"]
    findings = result.job.get("findings", [])
    for finding in findings:
        if finding["primary"]:
            lines += ["", *_cause(finding)]
    also = [one for one in findings if not one["primary"]]
    lines += [f"also {one['id']}: {one['cause']}" for one in also[:MAX_ALSO]]
    if len(also) > MAX_ALSO:
        lines.append(f"... and {len(also) - MAX_ALSO} more in report.json")
    lines += ["", f"evidence: {result.directory.root}"]
    return printable("\n".join(lines))


def _cause(finding: Mapping[str, Any]) -> Iterator[str]:
    """A finding's cause, evidence, what happened around it, and the next step."""
    yield f"finding {finding['id']}: {finding['cause']}"
    for one in finding["evidence"]:
        yield f"  {one['file']}:{one['line']}"
        yield from (f"    {text}" for text in str(one["text"]).splitlines())
    timeline = finding.get("detail", {}).get("timeline", [])
    if len(timeline) > 1:
        yield "  what happened, in seconds from then:"
        yield from (f"  {clean.line(str(moment))}" for moment in timeline)
    yield f"  next: {finding['fix']}"


def write_summary(reporter: Any, record: Mapping[str, Any], report: Iterable[str]) -> None:
    """The table over all phases and the verdict, last. `report`: lines on the report itself."""
    reporter.section(f"cluster {record['cluster']}, run {record['run_id']}", sep="-")
    if "proof" in record:
        for line, bad in proof.lines(record):
            reporter.write_line(printable(line), red=bad)
    else:
        _write_phases(reporter, record)
    for line in report:
        reporter.write_line(printable(line))
    verdict = record["verdict"]
    good, bad = verdict in (FIT, PROVEN), verdict in (UNFIT, NOT_PROVEN)
    colour = "green" if good else "red" if bad else "yellow"
    reporter.write_line(record["sentence"], bold=True, **{colour: True})


def _write_phases(reporter: Any, record: Mapping[str, Any]) -> None:
    rows = [[*COLUMNS, "reference"]] + [row_of(phase) for phase in record["phases"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for index, row in enumerate(rows):
        cells = [
            cell.rjust(width) if COLUMNS[i] in NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        failed = index > 0 and row[1] != "passed"
        known = index > 0 and bool(record["phases"][index - 1].get("known"))
        line = printable("  ".join([*cells, row[-1]]).rstrip())
        reporter.write_line(line, red=failed and not known, yellow=known)
    for line in record["absent_phases"]:
        reporter.write_line(line)
    for one in record.get("known", ()):
        reporter.write_line(printable(f"known: {one['what']}: {sentence(one)}"), yellow=True)
    for line in record.get("known_remarks", ()):
        reporter.write_line(printable(line), yellow=True)
    for line in [*_off(record["phases"]), *_warnings(record["phases"])]:
        reporter.write_line(printable(line), yellow=True)


def _off(phases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Metrics that are off their past, and, beside any regression, the versions that changed."""
    for phase in phases:
        metrics = phase["metrics"].values()
        past = [one["past"] for one in metrics if one.get("past") is not None]
        texts = [str(one["text"]) for one in past if one["status"] in ("warn", "fail")]
        yield from (f"{phase['phase']}: {text}" for text in texts)
        if phase.get("changed") and (texts or any(one["met"] is False for one in metrics)):
            changed = ", ".join(map(str, phase["changed"]))
            yield f"{phase['phase']}: changed since its last good run: {changed}"


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


def row_of(phase: Mapping[str, Any]) -> list[str]:
    """A phase's cells: those of COLUMNS, and the comparison with its references."""
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
        f"{phase['outcome']}{', known' if phase.get('known') else ''}",
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
    missed = [_miss(name, one) for name, one in compared.items() if not one["met"]]
    return "; ".join(missed) if missed else f"met ({', '.join(compared)})"


def _miss(name: str, metric: Mapping[str, Any]) -> str:
    """`steps_per_s -61.7 %`; the criterion's failure says the rest."""
    value, expected = metric["value"], (metric["reference"] or {}).get("value")
    if isinstance(value, str) or not expected:
        return f"{name} {value}"
    return f"{name} {(value / expected - 1) * 100:+.1f} %"


def _seconds(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else "-"


def printable(text: str) -> str:
    """Logs are hostile text: no control character of theirs reaches the terminal."""
    return clean.lines(text)
